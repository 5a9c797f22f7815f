package console_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// visits is a store that counts the tag keys that etcd would visit for reads: all keys of
// each interval.
type visits struct {
	store.Store
	keys atomic.Int64
}

// Txn implements ledger.Store.
func (v *visits) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := v.Store.Txn(ctx, txn)
	if err == nil && answer.Succeeded {
		gets := 0
		for _, op := range txn.Then {
			if op.Get == nil {
				continue
			}
			if strings.Contains(op.Get.Key, "/tags/") {
				v.keys.Add(answer.Counts[gets])
			}
			gets++
		}
	}
	return answer, err
}

// TestPagesOfTagsVisitFewKeys: to list all tags etcd visits each key a few times, not once
// for each page.
func TestPagesOfTagsVisitFewKeys(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const tags, size = 2000, 20
		w := newWorld(t, halves())
		w.tags(tags)
		etcd := &visits{Store: w.Mem.Open()}
		n := w.nodeOver(etcd)
		listed := 0
		for token := ""; ; {
			page := must(n.ListTags(bg, &marchv1.ListTagsRequest{PageSize: size, PageToken: token}))(t)
			listed += len(page.GetTags())
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		// A walk from each page to the end would be pages/2 times all tags: 50 times.
		if times := float64(etcd.keys.Load()) / tags; listed != tags || times > 20 {
			t.Errorf("%d tags listed, each visited %.1f times", listed, times)
		} else {
			t.Logf("each tag was visited %.1f times", times)
		}
	})
}
