// Package leaf is the door for callers of Meituan's Leaf over HTTP: /api/segment/get/{key},
// /api/snowflake/get/{key} and /decodeSnowflakeId.
//
// A key is the tag of its name, escaped as package foreign says. Answers are a number
// without a line's end, or Spring Boot's error with Leaf's own message: callers parse both.
// Leaf answers 0 for a mode that is not enabled. This door answers an error.
package leaf

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/internal/foreign"
	"github.com/march-id/march/room/door"
)

// Leaf's codes (Result.java, SegmentIDGenImpl.java, SnowflakeIDGenImpl.java).
const (
	notInitialised = -1 // of segments: no such mode. Of Snowflake: the clock is behind.
	noSuchKey      = -2
	nothingLeft    = -3 // of segments: both are used up
)

type leaf struct {
	room   door.Room
	timed  allocator.Tag // that Snowflake answers from; empty for none
	layout timeid.Layout
}

// New returns the door. Snowflake answers from a tag of time-ordered IDs, whatever the caller's key: Leaf has
// one generator. Empty: there is none.
func New(room door.Room, snowflake allocator.Tag) (*door.HTTP, error) {
	preset, err := timeid.PresetNamed("leaf")
	if err != nil {
		return nil, err
	}
	return door.NewHTTP("leaf", &leaf{room, snowflake, preset.Layout}), nil
}

// ServeHTTP looks at the path as it was sent: a key may have an escaped slash. A ServeMux
// would cost more than all else that the door does for an ID.
func (l *leaf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	if key, ok := keyOf(path, "/api/segment/get/"); ok {
		l.segment(w, r, key)
	} else if _, ok := keyOf(path, "/api/snowflake/get/"); ok {
		l.snowflake(w, r)
	} else if path == "/decodeSnowflakeId" {
		l.decode(w, r)
	} else {
		door.SpringNotFound(w, r)
	}
}

// keyOf returns the key that follows prefix in an escaped path: one element, not empty.
func keyOf(path, prefix string) (key string, ok bool) {
	escaped, ok := strings.CutPrefix(path, prefix)
	if !ok || escaped == "" || strings.Contains(escaped, "/") {
		return "", false
	}
	key, err := url.PathUnescape(escaped)
	return key, err == nil
}

func (l *leaf) segment(w http.ResponseWriter, r *http.Request, key string) {
	tag, err := foreign.Tag(key)
	if err != nil {
		fail(w, r, noSuchKey, err)
		return
	}
	switch id, err := l.room.Next(r.Context(), string(tag)); {
	case err == nil:
		door.Number(w, door.Text, id)
	case allocator.KindOf(err) == allocator.NotFound:
		fail(w, r, noSuchKey, err)
	default:
		fail(w, r, nothingLeft, err)
	}
}

func (l *leaf) snowflake(w http.ResponseWriter, r *http.Request) {
	if l.timed == "" {
		fail(w, r, notInitialised, allocator.Refused)
		return
	}
	id, err := l.room.NextTime(r.Context(), string(l.timed))
	if err == nil {
		door.Number(w, door.Text, id)
		return
	}
	switch allocator.KindOf(err) {
	case allocator.NotFound, allocator.Invalid, allocator.Refused:
		fail(w, r, noSuchKey, err)
	default:
		fail(w, r, notInitialised, err)
	}
}

// fail answers an error as LeafController throws it, with a status that says whether to try again.
func fail(w http.ResponseWriter, r *http.Request, code int, err error) {
	status := door.StatusOf(w, err, http.StatusInternalServerError)
	door.SpringError(w, r, status, "com.sankuai.inf.leaf.server.exception.LeafServerException",
		fmt.Sprintf("Result{id=%d, status=EXCEPTION}", code))
}

// decode answers the parts of an ID of Leaf's own Snowflake. The epoch and the bits are fixed
// (LeafMonitorController.java).
func (l *leaf) decode(w http.ResponseWriter, r *http.Request) {
	given, ok := door.Query(r.URL.RawQuery).Get("snowflakeId")
	if !ok {
		door.SpringError(w, r, http.StatusBadRequest,
			"org.springframework.web.bind.MissingServletRequestParameterException",
			"Required String parameter 'snowflakeId' is not present")
		return
	}
	id, err := strconv.ParseInt(given, 10, 64)
	var parts timeid.Parts
	if err == nil {
		parts, err = l.layout.Decompose(id)
	}
	if err != nil {
		door.JSON(w, http.StatusOK, map[string]string{"errorMsg": "snowflake Id反解析发生异常!"})
		return
	}
	door.JSON(w, http.StatusOK, struct {
		Timestamp  string `json:"timestamp"`
		SequenceID string `json:"sequenceId"`
		WorkerID   string `json:"workerId"`
	}{
		fmt.Sprintf("%d(%s)", parts.Time, time.UnixMilli(parts.Time).Format("2006-01-02 15:04:05.000")),
		strconv.FormatInt(parts.Sequence, 10), strconv.FormatInt(parts.Worker, 10),
	})
}
