package setting_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/setting"
)

// TestForeignName: a tag's message has the name that the doors' clients use, of both kinds
// of tags, and can be sent whatever bytes that name has.
func TestForeignName(t *testing.T) {
	t.Parallel()
	for tag, want := range map[allocator.Tag]string{
		"order": "", "order_id": "", "order_3aid": "order:id", "0_30_4frder": "Order", "a_61": "",
		"a_ff": "a\uFFFD", "a_00": "a\x00",
	} {
		counter := record.Tag{Name: tag, TagSettings: record.DefaultTag()}
		timed := counter
		timed.Time = &record.TimeTag{}
		for _, r := range []record.Tag{counter, timed} {
			message := setting.ToProto(r)
			if got := message.GetForeignName(); got != want {
				t.Errorf("tag %s stands for %q; want %q", tag, got, want)
			}
			if _, err := proto.Marshal(message); err != nil {
				t.Errorf("tag %s: %v", tag, err)
			}
		}
	}
}
