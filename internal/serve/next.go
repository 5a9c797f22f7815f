package serve

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
)

const nextPath = "/v1/tags/{tag}/next"

// next serves POST /v1/tags/{tag}/next: one ID or, with a count in the body, that many IDs as runs; with contiguous as
// one run, and with texts with their texts. The query may have the same, as it had to until 0.1. It is the hot route:
// for one ID it uses no reflection, timers and log lines. Its answers are march.v1.Issued.
func (h *rest) next(ids access.Issuer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		batch, err := h.readBatch(w, r)
		if err != nil {
			h.refuse(w, r, err)
			return
		}
		ctx := &lateDeadline{Context: r.Context()}
		defer ctx.stop()
		var body []byte
		if batch == nil {
			var answer *marchv1.NextResponse
			if answer, err = ids.Next(ctx, &marchv1.NextRequest{Tag: r.PathValue("tag")}); err == nil {
				body = appendNumber(append(make([]byte, 0, 40), `{"id":`...), answer.GetId())
				if answer.GetText() != "" {
					body = appendText(append(body, `,"text":`...), answer.GetText())
				}
				body = append(body, "}\n"...)
			}
		} else {
			var answer *marchv1.NextBatchResponse
			batch.Tag = r.PathValue("tag")
			if answer, err = ids.NextBatch(ctx, batch); err == nil {
				body = appendBatch(answer)
			}
		}
		if err != nil {
			h.refuse(w, r, err)
			return
		}
		w.Header()["Content-Type"] = contentJSON
		_, _ = w.Write(body) // if the caller has disconnected, its ID is a gap
	})
}

// readBatch returns the batch that a request asks for, without its tag, or nil for one ID. NextBatch checks the bounds
// of the count.
func (h *rest) readBatch(w http.ResponseWriter, r *http.Request) (*marchv1.NextBatchRequest, error) {
	if r.URL.RawQuery == "" && (r.Body == nil || r.Body == http.NoBody) {
		return nil, nil
	}
	query, err := h.routes[nextPath].methods[http.MethodPost].checkQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	body, fields, err := readBody(w, r, h.maxBody)
	if err == nil && len(fields) > 0 {
		err = checkBody(fields, map[string]string{"tag": r.PathValue("tag")})
	}
	if err == nil && len(query) > 0 {
		err = h.warnOfQuery(r, nextPath, fields)
	}
	switch {
	case err != nil || len(query) == 0 && len(fields) == 0:
		return nil, err
	case fields["count"] == nil && !query.Has("count"):
		return nil, allocator.Errorf(allocator.Invalid, "count: none; allowed: 1 to %d", api.MaxBatch)
	case len(query) > 0:
		count, err := strconv.ParseInt(query.Get("count"), 10, 64)
		return &marchv1.NextBatchRequest{Count: count, Contiguous: query.Get("contiguous") == "true",
			Texts: query.Get("texts") == "true"}, err
	}
	batch := &marchv1.NextBatchRequest{}
	if err := newCodec(true).NewDecoder(bytes.NewReader(body)).Decode(batch); err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "%w", err)
	}
	return batch, nil
}

func appendBatch(answer *marchv1.NextBatchResponse) []byte {
	runs := answer.GetRuns()
	const most = len(`{"first":"9223372036854775807","count":"100000","stride":"4611686018427387904"},`)
	body := append(make([]byte, 0, most*len(runs)+20), `{"runs":[`...)
	for i, run := range runs {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendNumber(append(body, `{"first":`...), run.GetFirst())
		body = appendNumber(append(body, `,"count":`...), run.GetCount())
		if run.GetStride() > 1 {
			body = appendNumber(append(body, `,"stride":`...), run.GetStride())
		}
		body = append(body, '}')
	}
	body = append(body, ']')
	if answer.GetFormat() != "" {
		body = appendText(append(body, `,"format":`...), answer.GetFormat())
	}
	if answer.GetKeyCheck() != "" {
		body = appendText(append(body, `,"keyCheck":`...), answer.GetKeyCheck())
	}
	for i, text := range answer.GetTexts() {
		before := ","
		if i == 0 {
			before = `,"texts":[`
		}
		body = appendText(append(body, before...), text)
	}
	if len(answer.GetTexts()) > 0 {
		body = append(body, ']')
	}
	return append(body, "}\n"...)
}

// appendText appends a text of a format, which is ASCII, as a string of JSON.
func appendText(b []byte, text string) []byte {
	b = append(b, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c == 0x7f:
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// appendNumber appends n as a string of JSON.
func appendNumber(b []byte, n int64) []byte {
	return append(strconv.AppendInt(append(b, '"'), n, 10), '"')
}

// lateDeadline is a context that ends when its parent does, or callTimeout after the
// first call of Done. On the hot path nothing waits for its end, and an unused timer
// would cost more than the rest of the call.
type lateDeadline struct {
	context.Context // the request's
	mu              struct {
		sync.Mutex
		timer  context.Context // nil before the first call of Done
		cancel context.CancelFunc
	}
}

// Done begins the time.
func (d *lateDeadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.timer == nil {
		d.mu.timer, d.mu.cancel = context.WithTimeout(d.Context, callTimeout) //nolint:fatcontext // once
	}
	return d.mu.timer.Done()
}

func (d *lateDeadline) Err() error { return d.current().Err() }

func (d *lateDeadline) Deadline() (time.Time, bool) { return d.current().Deadline() }

func (d *lateDeadline) current() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.timer != nil {
		return d.mu.timer
	}
	return d.Context
}

func (d *lateDeadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.timer != nil {
		d.mu.cancel()
	}
}
