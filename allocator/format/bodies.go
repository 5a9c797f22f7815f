package format

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

// bodies compile the parts that write the number, and its check.

func (c *compiler) number(p part) (arguments []string, err error) {
	n := number{radix: radix10}
	for _, r := range []radix{radix32, radix36, radix62} {
		if r.name() == p.name {
			n.radix = r
		}
	}
	if len(p.args) == 1 {
		if n.width, err = c.integer(p.args[0], "digits", 1, n.radix.most()); err != nil {
			return nil, err
		}
		arguments = []string{p.args[0].text}
	}
	c.format.body = n
	return arguments, nil
}

func (c *compiler) check(p part) ([]string, error) {
	f, k := c.format, checks[p.name]
	if f.friendly != nil || f.sortable != nil || !slices.Contains(k.radices(), f.body.radix) {
		var allowed []string
		for _, r := range k.radices() {
			allowed = append(allowed, r.name())
		}
		return nil, c.fail(p.offset, "%s is not defined for this number; allowed after: %s", p.name,
			strings.Join(allowed, ", "))
	}
	if k == crockford && f.unit != noUnit {
		return nil, c.fail(p.offset,
			"%s with a date or group, which it would not protect; allowed: without them", p.name)
	}
	f.check = k
	return nil, nil
}

func (c *compiler) sortable(p part) ([]string, error) {
	if err := c.undated(p); err != nil {
		return nil, err
	}
	for _, r := range []radix{radix62, radix36} {
		if p.args[0].text == strconv.Itoa(int(r)) {
			s := newSortable(r)
			c.format.sortable = &s
			return []string{p.args[0].text}, nil
		}
	}
	return nil, c.fail(p.args[0].offset, "radix %s; allowed: 36, 62", short(p.args[0].text))
}

// undated refuses a period beside a time.
func (c *compiler) undated(p part) error {
	if c.format.unit != noUnit {
		return c.fail(p.offset,
			"%s with a date or group; allowed: without them, as time-ordered IDs have no period", p.name)
	}
	return nil
}

// friendly has a preset or bits, a zone, and then, in any order: padded, and of bits also
// epoch=, unit= and order=.
func (c *compiler) friendly(p part) ([]string, error) {
	if err := c.undated(p); err != nil {
		return nil, err
	}
	f, first := &friendly{}, p.args[0]
	arguments := []string{first.text}
	isBits := strings.Contains(first.text, "/")
	switch {
	case first.text == widePreset:
		f.wide = true
	case isBits:
		var err error
		f.layout.Unit = time.Millisecond
		if f.layout.TimeBits, f.layout.WorkerBits, f.layout.SequenceBits,
			err = timeid.ParseBits(first.text); err != nil {
			return nil, c.fail(first.offset, "%v", err)
		}
	default:
		preset, err := timeid.PresetNamed(first.text)
		if err != nil {
			return nil, c.fail(first.offset, "friendly of %s; allowed: %s, or bits such as 41/10/12",
				short(first.text), strings.Join(timeid.PresetNames(), ", "))
		}
		f.layout = preset.Layout
	}
	zone, ok := parseZone(p.args[1].text)
	if !ok {
		return nil, c.fail(p.args[1].offset,
			"zone %s; allowed: UTC, or a fixed offset from -18:00 to +18:00 (a zone with summer time writes two "+
				"IDs as one text)",
			short(p.args[1].text))
	}
	f.offset = zone
	arguments = append(arguments, zoneString(zone))
	options, err := c.options(p, f, isBits)
	if err != nil {
		return nil, err
	}
	if !f.wide {
		if err := f.layout.Validate(); err != nil {
			return nil, c.fail(first.offset, "%v", err)
		}
	}
	if !f.complete() {
		return nil, c.fail(p.offset,
			"no time of this layout has a year of four digits; allowed: an epoch before the year 10000")
	}
	c.format.friendly = f
	return append(arguments, options...), nil
}

// options reads the arguments of friendly from the third on, and returns them in one order.
func (c *compiler) options(p part, f *friendly, isBits bool) (canonical []string, err error) {
	values := map[string]string{}
	for _, a := range p.args[2:] {
		name, value, _ := strings.Cut(a.text, "=")
		if _, twice := values[name]; twice {
			return nil, c.fail(a.offset, "%s is there twice; allowed: once", short(name))
		}
		values[name] = value
		err = nil
		switch {
		case a.text == "padded":
			f.padded = true
		case name == "epoch" && !f.wide:
			f.layout.Epoch, err = timeid.ParseEpoch(value)
		case name == "unit" && isBits:
			f.layout.Unit, err = timeid.ParseUnit(value)
		case name == "order" && isBits:
			f.layout.Order, err = timeid.ParseOrder(value)
		default:
			err = allocator.Errorf(allocator.Invalid,
				"%s; allowed: padded; epoch=UNIX_MS but of %s; unit=1ms, 10ms or 1s and order=worker-middle or "+
					"worker-last of bits",
				short(a.text), widePreset)
		}
		if err != nil {
			return nil, c.fail(a.offset, "%v", err)
		}
	}
	if _, ok := values["epoch"]; ok {
		canonical = append(canonical, fmt.Sprintf("epoch=%d", f.layout.Epoch))
	} else if isBits {
		return nil, c.fail(p.args[0].offset, "bits without an epoch; allowed: with epoch=UNIX_MS")
	}
	if isBits && f.layout.Unit != time.Millisecond {
		canonical = append(canonical, "unit="+f.layout.Unit.String())
	}
	if isBits && f.layout.Order != timeid.WorkerMiddle {
		canonical = append(canonical, "order="+f.layout.Order.String())
	}
	if f.padded {
		canonical = append(canonical, "padded")
	}
	return canonical, nil
}

// maxOffset is the largest offset of a zone, as in java.time.ZoneOffset, in minutes.
const maxOffset = 18 * 60

// parseZone reads UTC, Z or an offset such as +08:00, and returns it in seconds.
func parseZone(text string) (int, bool) {
	if text == "UTC" || text == "Z" {
		return 0, true
	}
	if len(text) != len("+08:00") || text[0] != '+' && text[0] != '-' || text[3] != ':' {
		return 0, false
	}
	hours, err1 := strconv.ParseUint(text[1:3], 10, 8)
	minutes, err2 := strconv.ParseUint(text[4:], 10, 8)
	offset := int(hours*60 + minutes)
	if err1 != nil || err2 != nil || minutes > 59 || offset > maxOffset {
		return 0, false
	}
	if text[0] == '-' {
		offset = -offset
	}
	return offset * 60, true
}

func zoneString(offset int) string {
	switch minutes := offset / 60; {
	case minutes == 0:
		return "UTC"
	case minutes < 0:
		return fmt.Sprintf("-%02d:%02d", -minutes/60, -minutes%60)
	default:
		return fmt.Sprintf("+%02d:%02d", minutes/60, minutes%60)
	}
}

func isKeyName(name string) bool {
	_, err := allocator.ParseTag(name)
	return err == nil
}
