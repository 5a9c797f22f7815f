package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Watch implements Store.
func (e *etcd) Watch(ctx context.Context, intervals []Interval, from int64) <-chan Change {
	out := make(chan Change)
	go func() {
		defer close(out)
		err := e.watch(ctx, intervals, from, out)
		select {
		case out <- Change{Err: err}:
		case <-ctx.Done():
		}
	}()
	return out
}

// watch runs one etcd watch for each interval, all on one stream. It asks the member for
// progress, so that it notices a watch that hangs.
func (e *etcd) watch(ctx context.Context, intervals []Interval, from int64, out chan<- Change) error {
	m, err := e.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	watcher := clientv3.NewWatcher(m.Client)
	var forwarders sync.WaitGroup
	defer forwarders.Wait()
	defer func() { _ = watcher.Close() }()
	defer cancel()

	heard, ended := make(chan clientv3.WatchResponse), make(chan struct{}, len(intervals))
	for _, in := range intervals {
		opts := []clientv3.OpOption{clientv3.WithRev(from), clientv3.WithProgressNotify()}
		if in.End != "" {
			opts = append(opts, clientv3.WithRange(in.End))
		}
		responses := watcher.Watch(ctx, in.Key, opts...)
		forwarders.Go(func() {
			for r := range responses {
				select {
				case heard <- r:
				case <-ctx.Done():
					return
				}
			}
			ended <- struct{}{}
		})
	}
	ask := time.NewTicker(e.cfg.Silence / 3)
	defer ask.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ask.C:
			if time.Since(last) > e.cfg.Silence {
				return e.failed(m, m.endpoint, fmt.Errorf("a watch heard nothing for %v: %w", e.cfg.Silence,
					context.DeadlineExceeded))
			}
			if err := watcher.RequestProgress(ctx); err != nil {
				return e.failed(m, m.endpoint, err)
			}
		case <-ended:
			return e.failed(m, m.endpoint, fmt.Errorf("a watch ended: %w", clientv3.ErrNoAvailableEndpoints))
		case r := <-heard:
			last = time.Now()
			switch {
			case r.CompactRevision != 0:
				return &CompactedError{r.CompactRevision}
			case r.Err() != nil:
				return e.failed(m, m.endpoint, r.Err())
			case len(r.Events) == 0:
				continue
			}
			select {
			case out <- Change{KVs: changed(r.Events)}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func changed(events []*clientv3.Event) []KV {
	kvs := make([]KV, 0, len(events))
	for _, ev := range events {
		kv := KV{Key: string(ev.Kv.Key), Value: ev.Kv.Value, ModRevision: ev.Kv.ModRevision}
		if ev.Type == clientv3.EventTypeDelete {
			kv.Value, kv.ModRevision = nil, 0
		}
		kvs = append(kvs, kv)
	}
	return kvs
}
