package rest

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// next serves POST /v1/tags/{tag}/next: one ID or, with ?count=, that many IDs as runs;
// with &contiguous=true as one run, and with &texts=true with their texts. It is the hot
// route, so it uses no reflection, timers and log lines. Its answers are march.v1.Issued.
func (h *handler) next(ids Issuer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		batch, err := parseBatch(r.URL.RawQuery)
		if err == nil && r.Body != nil && r.Body != http.NoBody {
			err = h.emptyBody(w, r)
		}
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

func (h *handler) emptyBody(w http.ResponseWriter, r *http.Request) error {
	_, fields, err := readBody(w, r, h.cfg.MaxBody)
	if err == nil {
		err = refuseFields(fields)
	}
	return err
}

// parseBatch returns the batch of a query, without its tag, or nil for an empty query.
// NextBatch checks the bounds of the count.
func parseBatch(query string) (*marchv1.NextBatchRequest, error) {
	if query == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "query: %w", err)
	}
	for name, given := range values {
		switch {
		case name != "count" && name != "contiguous" && name != "texts":
			return nil, allocator.Errorf(allocator.Invalid,
				"query: unknown parameter %.100q; allowed: contiguous, count, texts", name)
		case len(given) != 1:
			return nil, allocator.Errorf(allocator.Invalid, "%s: given %d times; allowed: once", name, len(given))
		}
	}
	batch := &marchv1.NextBatchRequest{}
	for name, to := range map[string]*bool{"contiguous": &batch.Contiguous, "texts": &batch.Texts} {
		switch given := values.Get(name); given {
		case "", "false":
		case "true":
			*to = true
		default:
			return nil, allocator.Errorf(allocator.Invalid, "%s: %.100q; allowed: true or false", name, given)
		}
	}
	given := values.Get("count")
	batch.Count, err = strconv.ParseInt(given, 10, 64)
	if err != nil || strconv.FormatInt(batch.Count, 10) != given { // as check.go has it
		return nil, allocator.Errorf(allocator.Invalid, "count: %.100q; allowed: 1 to %d", given, api.MaxBatch)
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
