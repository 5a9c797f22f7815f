package setting

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Fact is what a tag's page and `march tag show` say of the tag beside its lists.
type Fact struct {
	Name  string
	Value any // as in a list, or a Value
}

// Value is the value of a setting.
type Value struct {
	Of   Setting
	Text string
}

func (v Value) String() string { return v.Text }

// Facts returns what there is to say of a tag.
func Facts(t *marchv1.Tag) []Fact {
	list := []Fact{{"name at doors", t.GetForeignName()}, {"kind", KindOf(t).String()}}
	for _, s := range Settings(KindOf(t), true) {
		text := s.Text(t)
		if s.Path == "time.epoch_ms" {
			text = time.UnixMilli(t.GetTime().GetEpochMs()).UTC().Format(timeid.Format)
		}
		list = append(list, Fact{s.Words(), Value{s, text}})
	}
	add := func(name, format string, values ...any) {
		list = append(list, Fact{name, fmt.Sprintf(format, values...)})
	}
	if p := t.GetPeriod(); p != nil {
		add("now", "%s, IDs %d to %d; the next period begins at %s", p.GetCurrent(), p.GetFirst(), p.GetEnd()-1,
			p.GetEnds().AsTime().Format(time.RFC3339))
	}
	if t.GetPrescaleUntil() != nil {
		add("prescale", "%d until %s", t.GetPrescale(), t.GetPrescaleUntil().AsTime().Format(time.RFC3339))
	}
	if t.GetSkip() > 0 {
		add("skip", "all rooms to %d", t.GetSkip())
	}
	for _, room := range slices.Sorted(maps.Keys(t.GetSkips())) {
		add("skip", "room %s to %d", room, t.GetSkips()[room])
	}
	list = append(list, Fact{"created", t.GetCreated()})
	return slices.DeleteFunc(list, func(f Fact) bool { return fmt.Sprint(f.Value) == "" })
}
