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
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/march-id/march/allocator"
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
