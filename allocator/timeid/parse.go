package timeid

import (
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
)

// ParseBits reads the widths of time, worker and sequence: "41/10/12". It checks
// the form and that each is a number up to 63; Layout.Validate checks the rest.
// Its error is Invalid.
func ParseBits(s string) (timeBits, workerBits, sequenceBits int, err error) {
	var n [3]int
	fields := strings.Split(s, "/")
	ok := len(fields) == len(n)
	for i := 0; ok && i < len(n); i++ {
		n[i], ok = parseWidth(fields[i])
	}
	if !ok {
		return 0, 0, 0, allocator.Errorf(allocator.Invalid,
			"bits: %q; allowed: time/worker/sequence such as 41/10/12, up to %d together", short(s), MaxBits)
	}
	return n[0], n[1], n[2], nil
}

// parseWidth reads a width without a sign and without leading zeros.
func parseWidth(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 8)
	return int(n), err == nil && n <= MaxBits && strconv.FormatUint(n, 10) == s
}

// ParseUnit reads a layout's unit: 1ms, 10ms or 1s. Its error is Invalid.
func ParseUnit(s string) (time.Duration, error) {
	for _, unit := range units {
		if s == unit.String() {
			return unit, nil
		}
	}
	return 0, allocator.Errorf(allocator.Invalid, "unit: %q; allowed: 1ms, 10ms, 1s", short(s))
}

// ParseEpoch reads an epoch, a time of RFC 3339 or a number of Unix ms, and
// returns it in Unix ms. Its error is Invalid.
func ParseEpoch(s string) (int64, error) {
	ms, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		var t time.Time
		if t, err = time.Parse(time.RFC3339Nano, s); err == nil {
			ms = t.UnixMilli()
			if t.Nanosecond()%int(time.Millisecond) != 0 {
				err = strconv.ErrSyntax
			}
		}
	}
	if err != nil || ms < 0 || ms > LatestEpoch {
		return 0, allocator.Errorf(allocator.Invalid,
			"epoch: %q; allowed: a time such as 2019-12-24T16:00:00Z, in whole ms, or Unix ms from 0 to %d",
			short(s), int64(LatestEpoch))
	}
	return ms, nil
}

// ParseOrder reads worker-middle or worker-last. Its error is Invalid.
func ParseOrder(s string) (Order, error) { return parseName("order", s, WorkerMiddle, WorkerLast) }

// ParseSequence reads reset, carry or random. Its error is Invalid.
func ParseSequence(s string) (Sequence, error) { return parseName("sequence", s, Reset, Carry, Random) }

// ParseRollback reads wait, offset or fail. Its error is Invalid.
func ParseRollback(s string) (Rollback, error) { return parseName("rollback", s, Wait, Offset, Fail) }

// parseName returns the value whose String is s.
func parseName[T interface {
	~uint8
	String() string
}](field, s string, values ...T) (T, error) {
	names := make([]string, len(values))
	for i, v := range values {
		if names[i] = v.String(); s == names[i] {
			return v, nil
		}
	}
	return 0, allocator.Errorf(allocator.Invalid, "%s: %q; allowed: %s", field, short(s), strings.Join(names, ", "))
}

// short bounds how much of its input an error repeats.
func short(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}
