package store

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Txn implements Store.
func (e *etcd) Txn(ctx context.Context, txn Txn) (Answer, error) {
	m, err := e.client()
	if err != nil {
		return Answer{}, err
	}
	cmps := make([]clientv3.Cmp, 0, len(txn.If))
	for _, c := range txn.If {
		if c.Value != nil {
			cmps = append(cmps, clientv3.Compare(clientv3.Value(c.Key), "=", string(c.Value)))
		}
		if c.Value == nil || c.ModRevision != 0 {
			cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.ModRevision))
		}
	}
	send := func() (ended int64, r *clientv3.TxnResponse, err error) {
		ended = e.ended.Load()
		r, err = m.Txn(clientv3.WithRequireLeader(ctx)).If(cmps...).Then(ops(txn.Then)...).Else(
			ops(txn.Else)...).Commit()
		return ended, r, err
	}
	ended, r, err := send()
	if outdated(err) {
		ended, r, err = send()
	}
	if err != nil {
		return Answer{}, e.denied(ctx, txn, e.failed(m, m.endpoint, err))
	}
	answer := Answer{Sender: e.sender(r.Header, ended), Revision: r.Header.Revision, Succeeded: r.Succeeded}
	for _, response := range r.Responses {
		if got := response.GetResponseRange(); got != nil {
			kvs := make([]KV, 0, len(got.Kvs))
			for _, kv := range got.Kvs {
				kvs = append(kvs, KV{Key: string(kv.Key), Value: kv.Value, ModRevision: kv.ModRevision})
			}
			answer.Got, answer.Counts = append(answer.Got, kvs), append(answer.Counts, got.Count)
		}
	}
	return answer, nil
}

// outdated reports whether etcd refused a request because the client's token ended, or because
// users or roles have changed since. Then nothing was done, and the client has a new token.
func outdated(err error) bool {
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}

func ops(in []Op) []clientv3.Op {
	out := make([]clientv3.Op, 0, len(in))
	for _, op := range in {
		switch {
		case op.Put != nil:
			out = append(out, clientv3.OpPut(op.Put.Key, string(op.Put.Value)))
		case op.Get != nil:
			out = append(out, clientv3.OpGet(op.Get.Key, getOptions(*op.Get)...))
		default:
			out = append(out, clientv3.OpDelete(op.Delete))
		}
	}
	return out
}

func getOptions(g Get) []clientv3.OpOption {
	var opts []clientv3.OpOption
	if g.End != "" {
		opts = append(opts, clientv3.WithRange(g.End))
	}
	if g.Limit > 0 {
		opts = append(opts, clientv3.WithLimit(g.Limit))
	}
	if g.Descending {
		opts = append(opts, clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
	}
	if g.KeysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	if g.At > 0 {
		opts = append(opts, clientv3.WithRev(g.At))
	}
	return opts
}
