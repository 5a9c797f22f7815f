// Package tinyid is the door for clients of Didi's TinyId: the four calls under
// /tinyid/id/, with query or form parameters bizType, token and batchSize.
//
// A bizType is the tag of its name, escaped as package foreign says. Tokens come from a
// file, or are those of the room's policy: without either the door does not open. A failed call is answered with 200, as TinyId
// does it: with a code in JSON, and with an empty body in the Simple forms, since its client
// throws on any other status.
//
// A segment is a run of consecutive IDs of one block with delta 1: (currentId, maxId].
package tinyid

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/room/door"
	"github.com/march-id/march/room/foreign"
)

// TinyId's codes (ErrorCode.java).
const (
	success  = 200
	badToken = 5
	failed   = 6
)

// maxBatch is TinyId's default of batch.size.max; a larger batchSize counts as this.
const maxBatch = 100_000

type tinyid struct {
	calls  door.Calls
	tokens *Tokens
}

// New returns the door. Where tokens is nil, calls has a Login, and clients give tokens of
// the room's policy.
func New(calls door.Calls, tokens *Tokens) *door.HTTP {
	t := &tinyid{calls, tokens}
	mux := http.NewServeMux()
	mux.HandleFunc("/tinyid/id/nextId", t.serve((*tinyid).next, answer))
	mux.HandleFunc("/tinyid/id/nextIdSimple", t.serve((*tinyid).next, simple))
	mux.HandleFunc("/tinyid/id/nextSegmentId", t.serve((*tinyid).nextSegment, answer))
	mux.HandleFunc("/tinyid/id/nextSegmentIdSimple", t.serve((*tinyid).nextSegment, simple))
	mux.HandleFunc("/", door.SpringNotFound)
	return door.NewHTTP("tinyid", mux)
}

// result is what a call answers.
type result interface {
	// text is the body of the Simple form.
	text() []byte
}

// request is what a call asks for.
type request struct {
	tag   string
	batch int64
}

// refusal is an error of TinyId's, with its code.
type refusal struct {
	code    int
	message string
}

// response is TinyId's Response.
type response struct {
	Data    any    `json:"data"`
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// answer answers as JSON.
func answer(w http.ResponseWriter, v result, refused *refusal) {
	if refused != nil {
		door.JSON(w, http.StatusOK, response{nil, refused.code, refused.message})
		return
	}
	door.JSON(w, http.StatusOK, response{v, success, ""})
}

// simple answers as text, and any failure with nothing.
func simple(w http.ResponseWriter, v result, refused *refusal) {
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	if refused == nil {
		_, _ = w.Write(v.text())
	}
}

// parameters returns those of the query and of the form. Most requests have no form, for
// which ParseForm would make two maps more.
func parameters(r *http.Request) (url.Values, error) {
	if r.ContentLength == 0 {
		return url.ParseQuery(r.URL.RawQuery)
	}
	err := r.ParseForm()
	return r.Form, err
}

// serve reads the parameters, checks the token, and answers what a call returns.
func (t *tinyid) serve(call func(*tinyid, context.Context, request) (result, error), answer func(http.ResponseWriter, result, *refusal)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		form, err := parameters(r)
		if err != nil {
			door.SpringError(w, r, http.StatusBadRequest, "", "the form cannot be read: "+err.Error())
			return
		}
		for _, name := range [...]string{"bizType", "token"} {
			if !form.Has(name) {
				door.SpringError(w, r, http.StatusBadRequest, "org.springframework.web.bind.MissingServletRequestParameterException",
					fmt.Sprintf("Required String parameter '%s' is not present", name))
				return
			}
		}
		asked := request{batch: 1}
		if s := form.Get("batchSize"); s != "" {
			n, err := strconv.ParseInt(s, 10, 32)
			if err != nil {
				door.SpringError(w, r, http.StatusBadRequest, "org.springframework.web.method.annotation.MethodArgumentTypeMismatchException",
					fmt.Sprintf("Failed to convert value of type 'java.lang.String' to required type 'java.lang.Integer'; nested exception is java.lang.NumberFormatException: For input string: %q", s))
				return
			}
			asked.batch = min(n, maxBatch)
		}
		key := form.Get("bizType")
		ctx, err := t.login(r.Context(), form.Get("token"), key)
		if err != nil && allocator.KindOf(err) == allocator.Unauthenticated {
			answer(w, nil, &refusal{badToken, "token is error"})
			return
		}
		var tag allocator.Tag
		if err == nil {
			tag, err = foreign.Tag(key)
		}
		var v result
		if err == nil {
			asked.tag = string(tag)
			v, err = call(t, ctx, asked)
		}
		if kind := allocator.KindOf(err); err != nil && (kind == allocator.Denied || kind == allocator.Unauthenticated) {
			answer(w, nil, &refusal{badToken, "token is error"}) // as for a token of another bizType
			return
		}
		if err != nil {
			answer(w, nil, &refusal{failed, err.Error()})
			return
		}
		answer(w, v, nil)
	}
}

// login checks a token: one of the door's file, or else one of the room's policy. It returns
// the context for the calls. Its error is Unauthenticated for a wrong token.
func (t *tinyid) login(ctx context.Context, token, key string) (context.Context, error) {
	if t.tokens == nil {
		return t.calls.Login(ctx, token)
	}
	if !t.tokens.Allow(token, key) {
		return nil, allocator.Errorf(allocator.Unauthenticated, "the token is not one of this bizType")
	}
	return ctx, nil
}

// ids is a batch.
type ids []int64

func (v ids) text() []byte {
	b := make([]byte, 0, 20*len(v))
	for i, id := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return b
}

func (t *tinyid) next(ctx context.Context, asked request) (result, error) {
	if asked.batch < 1 {
		return ids{}, nil
	}
	if asked.batch == 1 {
		id, err := t.calls.Next(ctx, asked.tag)
		return ids{id}, err
	}
	runs, err := t.calls.NextN(ctx, asked.tag, asked.batch)
	if err != nil {
		return nil, err
	}
	all := make(ids, 0, asked.batch)
	for _, run := range runs {
		for i := range run.Count {
			all = append(all, run.First+i*max(run.Stride, 1))
		}
	}
	return all, nil
}

// segment is TinyId's SegmentId: the IDs above CurrentID, up to MaxID. The client asks for
// the next one at LoadingID.
type segment struct {
	MaxID     int64 `json:"maxId"`
	LoadingID int64 `json:"loadingId"`
	CurrentID int64 `json:"currentId"`
	Delta     int   `json:"delta"`
	Remainder int   `json:"remainder"`
}

func (s segment) text() []byte {
	return ids{s.CurrentID, s.LoadingID, s.MaxID, int64(s.Delta), int64(s.Remainder)}.text()
}

// loadingPercent is how much of a segment is used when its client asks for the next
// (Constants.java).
const loadingPercent = 20

func (t *tinyid) nextSegment(ctx context.Context, asked request) (result, error) {
	run, err := t.calls.NextKept(ctx, asked.tag, 0)
	if err != nil {
		return nil, err
	}
	current := run.First - 1
	return segment{
		MaxID: current + run.Count, LoadingID: current + max(1, run.Count*loadingPercent/100), CurrentID: current,
		Delta: 1, Remainder: 0,
	}, nil
}
