// Package cosid is the door for clients of cosid-proxy: the calls for segments, which
// CosId's SegmentId and SegmentChainId make, and those for single IDs.
//
// The counter {namespace}/{name} is the tag of namespace.name, escaped as package foreign
// says. A client takes (maxId-step, maxId] as its own, so a segment is exactly step
// consecutive IDs, or an error: a shorter one would be a duplicate.
//
// Machine IDs come from a range that the layout reserves (package machine), which the room
// names; without one they are refused.
package cosid

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/internal/foreign"
	"github.com/march-id/march/room/door"
)

// shared is the name of CosId's generator that has no name (IdGeneratorProvider.java).
const shared = "__share__"

type cosid struct {
	room     door.Room
	machines Machines
}

// New returns the door. machines gives machine IDs; nil gives none.
func New(room door.Room, machines Machines) *door.HTTP {
	c := &cosid{room, machines}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /segments/distributor/{namespace}/{name}", c.create)
	mux.HandleFunc("PATCH /segments/{namespace}/{name}", c.segment)
	mux.HandleFunc("GET /ids", c.next)
	mux.HandleFunc("GET /ids/{name}", c.next)
	mux.HandleFunc("GET /ids/as-string", c.nextText)
	mux.HandleFunc("GET /ids/as-string/{name}", c.nextText)
	mux.HandleFunc("POST /machines/{namespace}", c.distribute)
	mux.HandleFunc("PATCH /machines/{namespace}", c.guard)
	mux.HandleFunc("DELETE /machines/{namespace}", c.revert)
	mux.HandleFunc("GET /actuator/health", func(w http.ResponseWriter, _ *http.Request) {
		door.JSON(w, http.StatusOK, map[string]string{"status": "UP"})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusInternalServerError, "march: "+r.Method+" "+r.URL.Path+" is not served")
	})
	return door.NewHTTP("cosid", mux)
}

// refuse answers CosId's ErrorResponse. Its code of all errors but those of machines is 500
// (GlobalRestExceptionHandler.java).
func refuse(w http.ResponseWriter, status int, message string) { answer(w, status, "500", message) }

func answer(w http.ResponseWriter, status int, code, message string) {
	door.JSON(w, status, struct {
		Code   string   `json:"code"`
		Msg    string   `json:"msg"`
		Errors []string `json:"errors"`
	}{code, message, []string{}})
}

// fail answers an error of the room: 400 for what the caller asked wrongly, as CosId does
// for an IllegalArgumentException, and 503 or 429 for what it may try again. A parameterError
// has no such kind.
func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if kind := allocator.KindOf(err); kind == allocator.Invalid || kind == allocator.Refused {
		status = http.StatusBadRequest
	}
	refuse(w, door.StatusOf(w, err, status), "march: "+err.Error())
}

// number reads a parameter that has to be there.
func number(r *http.Request, name string, least, most int64) (int64, error) {
	s, _ := door.Query(r.URL.RawQuery).Get(name)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, bad(r, name, fmt.Sprintf("%d to %d", least, most))
	}
	if n < least || n > most {
		return 0, allocator.Errorf(allocator.Invalid, "%s: %.40q; allowed: %d to %d", name, s, least, most)
	}
	return n, nil
}

func tagOf(r *http.Request) (string, error) {
	tag, err := foreign.Tag(r.PathValue("namespace") + "." + r.PathValue("name"))
	return string(tag), err
}

// create makes a counter that begins after offset, unless there is one.
func (c *cosid) create(w http.ResponseWriter, r *http.Request) {
	if err := c.createCounter(r); err != nil {
		fail(w, err)
	}
}

func (c *cosid) createCounter(r *http.Request) error {
	tag, err := tagOf(r)
	if err != nil {
		return err
	}
	offset, err := number(r, "offset", 0, allocator.MaxID-2)
	if err != nil {
		return err
	}
	if _, err := number(r, "step", 1, math.MaxInt64); err != nil { // which each segment says again
		return err
	}
	_, err = c.room.Create(r.Context(), tag, offset+1)
	return err
}

// segment answers the last of step consecutive IDs. A counter that does not exist is made
// first, where the room creates tags: a client creates its counters once, as it starts.
func (c *cosid) segment(w http.ResponseWriter, r *http.Request) {
	last, err := c.last(r)
	if err != nil {
		fail(w, err)
		return
	}
	door.Number(w, door.BareJSON, last)
}

func (c *cosid) last(r *http.Request) (int64, error) {
	tag, err := tagOf(r)
	if err != nil {
		return 0, err
	}
	step, err := number(r, "step", 1, math.MaxInt64)
	if err != nil {
		return 0, err
	}
	run, err := c.room.NextKept(r.Context(), tag, step)
	if err != nil && allocator.KindOf(err) == allocator.NotFound {
		if _, err = c.room.Create(r.Context(), tag, 1); err == nil {
			run, err = c.room.NextKept(r.Context(), tag, step)
		}
	}
	if err != nil && allocator.KindOf(err) == allocator.Invalid {
		return 0, allocator.Errorf(allocator.Invalid, "step: %w", err)
	}
	return run.First + step - 1, err
}

func (c *cosid) id(r *http.Request) (int64, error) {
	name := r.PathValue("name")
	if name == "" {
		name = shared
	}
	tag, err := foreign.Tag(name)
	if err != nil {
		return 0, err
	}
	return c.room.Next(r.Context(), string(tag))
}

func (c *cosid) next(w http.ResponseWriter, r *http.Request) {
	id, err := c.id(r)
	if err != nil {
		fail(w, err)
		return
	}
	door.Number(w, door.BareJSON, id)
}

func (c *cosid) nextText(w http.ResponseWriter, r *http.Request) {
	id, err := c.id(r)
	if err != nil {
		fail(w, err)
		return
	}
	door.Number(w, door.Text, id)
}

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
