package console_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/mirror"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/testcluster"
)

// A console of more tags than its mirror has room for says so, in its log and to a recover, and serves
// on. Etcd has its address until it ends.
func TestConsoleWithoutRoomForItsMirror(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := testcluster.New(t)
		c.Init(testcluster.Halves(), "test")
		c.Tag(nil, "test", "order", "invoice", "parcel")
		uuid := must(c.Admin.Ledger.UUID(bg))(t)
		log := &logged{}
		s := c.Console(func(cfg *console.Config) {
			cfg.MirrorTags, cfg.Advertise = 2, "console.example.net:7001"
			cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: log})
		})
		ask := func() error {
			_, err := console.AskMirror(bg, s.Conn, mirror.Question{UUID: uuid}, func(mirror.Part) error { return nil })
			return err
		}
		testcluster.Await(t, "the mirror is full", func() bool {
			err := ask()
			return err != nil && strings.Contains(err.Error(), "more than 2 tags (--mirror-tags)")
		})
		testcluster.Await(t, "it is in the log", func() bool {
			return log.count("[WARN]", "the mirror has no room", "flag=--mirror-tags") == 1
		})
		if list, err := s.ListTags(bg, &marchv1.ListTagsRequest{}); err != nil || len(list.GetTags()) != 3 {
			t.Errorf("it serves no more: %v, %v", list.GetTags(), err)
		}
		const keys = "/march/default/consoles/"
		testcluster.Await(t, "etcd has its address", func() bool { return len(c.Mem.Keys(keys)) == 1 })
		s.Stop()
		if left := c.Mem.Keys(keys); len(left) != 0 {
			t.Errorf("after its end etcd has %v", left)
		}
	})
}

// A console does not start with the mirror of another cluster: it names the file, and leaves it as it is.
func TestConsoleWithTheMirrorOfAnotherCluster(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "mirror")
		with := func() *testcluster.Console {
			c := testcluster.New(t)
			c.Init(testcluster.Halves(), "test")
			return c.Console(func(cfg *console.Config) { cfg.MirrorTags, cfg.Mirror = 10, path })
		}
		first := with()
		testcluster.Await(t, "the file is there", func() bool { _, err := os.Stat(path); return err == nil })
		first.Stop()
		was := must(os.ReadFile(path))(t)
		ledgertest.WantKind(t, with().Wait(), allocator.Refused,
			"mirror "+path+": it is of cluster ", "this is cluster ")
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, was) {
			t.Errorf("the file changed: %v", err)
		}
	})
}
