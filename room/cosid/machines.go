package cosid

import (
	"context"
	"errors"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/room/door"
)

// Machines gives machine IDs; see package machine, whose errors it returns.
type Machines interface {
	// Allowed returns nil if the caller may have machine IDs of a namespace.
	Allowed(ctx context.Context, namespace string) error
	Distribute(ctx context.Context, c machine.Client, bits int, guard time.Duration) (number, last int64, err error)
	Guard(ctx context.Context, c machine.Client) error
	Revert(ctx context.Context, c machine.Client) error
}

// distribute answers a machine ID, and when it was last in use.
func (c *cosid) distribute(w http.ResponseWriter, r *http.Request) {
	var number, last int64
	client, err := c.client(r)
	if err == nil {
		var bits int
		if bits, err = strconv.Atoi(r.URL.Query().Get("machineBit")); err != nil {
			err = bad(r, "machineBit", "1 to 31")
		}
		var guard time.Duration
		if err == nil {
			guard, err = guardOf(r)
		}
		if err == nil {
			number, last, err = c.machines.Distribute(r.Context(), client, bits, guard)
		}
	}
	if err != nil {
		failMachine(w, err)
		return
	}
	b := strconv.AppendInt([]byte(`{"machineId":`), number, 10)
	b = strconv.AppendInt(append(b, `,"lastTimeStamp":`...), last, 10)
	door.Body(w, door.BareJSON, append(b, '}'))
}

// guard notes that a client lives. Its safeGuardDuration says nothing to the key: the next
// client's one decides.
func (c *cosid) guard(w http.ResponseWriter, r *http.Request) {
	client, err := c.client(r)
	if err == nil {
		_, err = guardOf(r)
	}
	if err == nil {
		err = c.machines.Guard(r.Context(), client)
	}
	if err != nil {
		failMachine(w, err)
	}
}

// revert takes a client's machine ID back. CosId's proxy answers 400 to a client that has
// none, which its client throws as it ends; this door answers 200.
func (c *cosid) revert(w http.ResponseWriter, r *http.Request) {
	client, err := c.client(r)
	if err == nil {
		err = c.machines.Revert(r.Context(), client)
	}
	if err != nil {
		failMachine(w, err)
	}
}

// errParameter is the cause of an error of a parameter that is missing or no value, which
// CosId answers with 500.
var errParameter = errors.New("parameter")

type parameterError struct{ error }

func (parameterError) Is(target error) bool { return target == errParameter }

func bad(r *http.Request, name, allowed string) error {
	return parameterError{allocator.Errorf(allocator.Invalid, "%s: %.40q; allowed: %s", name,
		r.URL.Query().Get(name), allowed)}
}

// client returns the client of a request that may have a machine ID.
func (c *cosid) client(r *http.Request) (machine.Client, error) {
	if c.machines == nil {
		return machine.Client{}, parameterError{allocator.Errorf(allocator.Refused,
			"this room has no machine IDs; start it with --cosid-machines NAME, or take time-ordered IDs from a "+
				"tag of kind time")}
	}
	client := machine.Client{Namespace: r.PathValue("namespace"), Instance: r.URL.Query().Get("instanceId")}
	if !r.URL.Query().Has("instanceId") {
		return client, bad(r, "instanceId", "the client's name")
	}
	switch r.URL.Query().Get("stable") { // as Spring reads a Boolean
	case "true":
		client.Stable = true
	case "false":
	default:
		return client, bad(r, "stable", "true, false")
	}
	return client, c.machines.Allowed(r.Context(), client.Namespace)
}

// guardOf returns the safeGuardDuration, Forever where it is longer than any time.
func guardOf(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("safeGuardDuration")
	if text == "" {
		return machine.DefaultGuard, nil
	}
	d, ok := parseDuration(text)
	if !ok {
		return 0, bad(r, "safeGuardDuration", "a duration of ISO 8601, such as PT5M")
	}
	return d, nil
}

var isoDuration = regexp.MustCompile(`^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+\.?\d*|\.\d+)S)?)?$`)

// parseDuration reads a duration as Java's Duration.toString writes it, which is PT with
// hours, minutes and seconds, and days before the T. It saturates at machine.Forever: CosId's
// own one for ever is longer than a time.Duration has room for.
func parseDuration(text string) (time.Duration, bool) {
	text = strings.ToUpper(text)
	parts := isoDuration.FindStringSubmatch(text)
	if parts == nil || len(text) > 40 || strings.HasSuffix(text, "P") || strings.HasSuffix(text, "T") {
		return 0, false
	}
	total := 0.0
	for k, seconds := range []float64{86400, 3600, 60, 1} {
		n, _ := strconv.ParseFloat(parts[k+1], 64) // 0 where there is none
		total += n * seconds
	}
	// A float64 does not have each nanosecond; a guard needs no more than milliseconds.
	if ns := total * float64(time.Second); ns < math.MaxInt64-float64(time.Hour) {
		return time.Duration(ns), true
	}
	return machine.Forever, true
}

// failMachine answers an error as CosId's proxy words it: M-01 to M-03 are those that its
// client knows.
func failMachine(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, error(machine.ErrOverflow)):
		answer(w, http.StatusBadRequest, "M-01", "march: "+err.Error())
	case errors.Is(err, error(machine.ErrNotFound)):
		answer(w, http.StatusBadRequest, "M-02", "march: "+err.Error())
	case errors.Is(err, error(machine.ErrLost)):
		answer(w, http.StatusBadRequest, "M-03", "march: "+err.Error())
	case errors.Is(err, errParameter):
		refuse(w, http.StatusInternalServerError, "march: "+err.Error())
	default:
		fail(w, err)
	}
}
