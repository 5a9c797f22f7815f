package web

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// timeForm is the settings of time-ordered IDs as a form has them.
type timeForm struct {
	Kind, Preset, Bits, Unit, Epoch, Order              string // of a tag to be created
	Sequence, CarryTo, RandomBelow, Rollback, MaxWait   string
	Kinds, Presets, Units, Orders, Sequences, Rollbacks []string
}

const (
	kindCounter = "counter"
	kindTime    = "time"
)

// timeFields are the names of the form's fields, except kind.
var timeFields = []string{"preset", "bits", "unit", "epoch", "order", "sequence", "carry_to",
	"random_below", "rollback", "max_wait"}

// counterFields are the names of the settings that only counters have.
var counterFields = []string{"start", "limit", "min_step", "max_step", "reserve", "max_jump", "max_skew",
	"strict_retract", "period", "period_digits", "time_zone"}

func newTimeForm(c *call, form string, t *marchv1.TimeTag) timeForm {
	f := timeForm{
		Kinds: []string{kindCounter, kindTime}, Presets: timeid.PresetNames(), Units: []string{"1ms", "10ms", "1s"},
		Orders:    []string{timeid.WorkerMiddle.String(), timeid.WorkerLast.String()},
		Sequences: []string{timeid.Reset.String(), timeid.Carry.String(), timeid.Random.String()},
		Rollbacks: []string{timeid.Wait.String(), timeid.Offset.String(), timeid.Fail.String()},
	}
	positive := func(n int64) string {
		if n == 0 {
			return ""
		}
		return num(n)
	}
	sequence, rollback, wait := "", "", ""
	if t != nil {
		sequence, rollback, wait = api.Word(t.GetSequence()), api.Word(t.GetRollback()),
			shortest(t.GetMaxWait().AsDuration())
	}
	f.Kind = c.or(form, "kind", kindCounter)
	f.Preset, f.Bits, f.Unit = c.or(form, "preset", ""), c.or(form, "bits", ""), c.or(form, "unit", "")
	f.Epoch, f.Order = c.or(form, "epoch", ""), c.or(form, "order", "")
	f.Sequence, f.Rollback, f.MaxWait = c.or(form, "sequence", sequence), c.or(form, "rollback", rollback),
		c.or(form, "max_wait", wait)
	f.CarryTo, f.RandomBelow = c.or(form, "carry_to", positive(t.GetCarryTo())),
		c.or(form, "random_below", positive(t.GetRandomBelow()))
	return f
}

// readKind returns the kind of the tag that a form creates. It refuses fields of the other
// kind: a browser may hide such a field, and still send it. Its errors are Invalid.
func readKind(c *call) (kind string, err error) {
	others := timeFields
	switch kind = c.FormValue("kind"); kind {
	case "", kindCounter:
		kind = kindCounter
	case kindTime:
		others = counterFields
	default:
		return kind, allocator.Errorf(allocator.Invalid, "kind: %q; allowed: %s, %s", kind, kindCounter, kindTime)
	}
	for _, field := range others {
		if text := c.FormValue(field); text != "" {
			return kind, allocator.Errorf(allocator.Invalid,
				"kind: %s: a tag of this kind has no %s; leave it empty (it is %q)", kind,
				strings.ReplaceAll(field, "_", " "), text)
		}
	}
	return kind, nil
}

// readTime reads the settings of time-ordered IDs, with their layout for a new tag.
// An empty field leaves its setting unset. Its errors are Invalid.
func readTime(c *call, fresh bool) (*marchv1.TimeTag, error) {
	t := &marchv1.TimeTag{}
	if fresh {
		if err := readTimeLayout(c, t); err != nil {
			return nil, err
		}
	}
	var err error
	if text := c.FormValue("sequence"); text != "" {
		if t.Sequence, err = api.ParseWord[marchv1.SequencePolicy]("sequence", text); err != nil {
			return nil, err
		}
	}
	if text := c.FormValue("rollback"); text != "" {
		if t.Rollback, err = api.ParseWord[marchv1.RollbackPolicy]("rollback", text); err != nil {
			return nil, err
		}
	}
	if c.FormValue("carry_to") != "" {
		if t.CarryTo, err = number(c, "carry_to"); err != nil {
			return nil, err
		}
	}
	if c.FormValue("random_below") != "" {
		if t.RandomBelow, err = number(c, "random_below"); err != nil {
			return nil, err
		}
	}
	if c.FormValue("max_wait") != "" {
		wait, err := period(c, "max_wait")
		if err != nil {
			return nil, err
		}
		t.MaxWait = durationpb.New(wait)
	}
	return t, nil
}

// readTimeLayout reads a preset, or the fields that describe a layout. Its errors
// are Invalid.
func readTimeLayout(c *call, t *marchv1.TimeTag) error {
	t.Preset = c.FormValue("preset")
	if text := c.FormValue("bits"); text != "" {
		timeBits, workerBits, sequenceBits, err := timeid.ParseBits(text)
		if err != nil {
			return err
		}
		t.TimeBits, t.WorkerBits, t.SequenceBits = int32(timeBits), int32(workerBits), int32(sequenceBits) //nolint:gosec // 63 at most
	} else if t.GetPreset() == "" {
		return allocator.Errorf(allocator.Invalid,
			"bits: none, and no preset; allowed: one of them, bits of time/worker/sequence such as 41/10/12")
	}
	if text := c.FormValue("unit"); text != "" {
		unit, err := timeid.ParseUnit(text)
		if err != nil {
			return err
		}
		t.Unit = durationpb.New(unit)
	}
	if text := c.FormValue("order"); text != "" {
		if _, err := timeid.ParseOrder(text); err != nil {
			return err
		}
		t.Order = api.FromWord[marchv1.WorkerOrder](strings.TrimPrefix(text, "worker-"))
	}
	if text := c.FormValue("epoch"); text != "" {
		epoch, err := timeid.ParseEpoch(text)
		if err != nil {
			return err
		}
		t.EpochMs = &epoch
	} else if t.GetPreset() == "" {
		return allocator.Errorf(allocator.Invalid,
			"epoch: none, and no preset; allowed: the time of tick 0, RFC 3339 or Unix ms")
	}
	return nil
}

// timeView is what the page of a tag of time-ordered IDs shows.
type timeView struct {
	*marchv1.TimeTag
	Epoch, End *timestamppb.Timestamp // of the time bits
	Left       *durationpb.Duration   // until the end
	Capacity   int64                  // IDs of a worker in a second
	Slices     []sliceRow
	Workers    []workerRow
	More       bool
}

func (h *Handler) newTimeView(c *call, t *marchv1.GetTagResponse, colour map[string]int) (*timeView, error) {
	p := t.GetTag().GetTime()
	l := timeid.Layout{
		TimeBits: int(p.GetTimeBits()), WorkerBits: int(p.GetWorkerBits()), SequenceBits: int(p.GetSequenceBits()),
		Unit: p.GetUnit().AsDuration(), Epoch: p.GetEpochMs(),
	}
	end := time.UnixMilli(l.End())
	v := &timeView{
		TimeTag: p, Epoch: timestamppb.New(time.UnixMilli(l.Epoch)), End: timestamppb.New(end), Capacity: l.PerSecond(),
		Left:   &durationpb.Duration{Seconds: max(end.Unix()-time.Now().Unix(), 0)},
		Slices: newSlices(t.GetSlices(), colour),
	}
	list, err := h.console.ListWorkers(c.Context(),
		&marchv1.ListWorkersRequest{Bits: &p.WorkerBits, PageSize: workersPage})
	v.Workers, v.More = newWorkers(list.GetWorkers(), colour), list.GetNextPageToken() != ""
	return v, err
}
