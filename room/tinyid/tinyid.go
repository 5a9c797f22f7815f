// Package tinyid is the door for clients of Didi's TinyId: the four calls under
// /tinyid/id/, with query or form parameters bizType, token and batchSize.
//
// A bizType is the tag of its name, escaped as package foreign says. Tokens come from a
// file, or are those of the room's policy: without either the door does not open. A failed
// call is answered with 200, as TinyId does it: with a code in JSON, and with an empty body
// in the Simple forms. One that may be tried again has another status: TinyId's client takes
// that as it takes an empty body (TinyIdHttpUtils.java), and goes to another address.
//
// A segment is a run of consecutive IDs of one block with delta 1: (currentId, maxId].
package tinyid

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/foreign"
	"github.com/march-id/march/internal/smallfile"
	"github.com/march-id/march/room/door"
)

// TinyId's codes (ErrorCode.java).
const (
	badToken = 5
	failed   = 6
)

// maxBatch is TinyId's default of batch.size.max; a larger batchSize counts as this.
const maxBatch = 100_000

type tinyid struct {
	room   door.Room
	tokens *Tokens
}

// New returns the door. Where tokens is nil, clients give tokens of the room's policy.
func New(room door.Room, tokens *Tokens) *door.HTTP {
	t := &tinyid{room, tokens}
	return door.NewHTTP("tinyid", http.HandlerFunc(t.serve))
}

// request is what a call asks for, in which form.
type request struct {
	tag    string
	batch  int64
	simple bool // as text, and not as JSON
}

// call does what a request asks for, and appends the answer to b.
type call func(t *tinyid, ctx context.Context, asked request, b []byte) ([]byte, error)

// serve answers a request by its path.
func (t *tinyid) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/tinyid/id/nextId":
		t.do((*tinyid).next, false, w, r)
	case "/tinyid/id/nextIdSimple":
		t.do((*tinyid).next, true, w, r)
	case "/tinyid/id/nextSegmentId":
		t.do((*tinyid).nextSegment, false, w, r)
	case "/tinyid/id/nextSegmentIdSimple":
		t.do((*tinyid).nextSegment, true, w, r)
	default:
		door.SpringNotFound(w, r)
	}
}

// do reads the parameters, checks the token, and answers what a call returns.
func (t *tinyid) do(do call, simple bool, w http.ResponseWriter, r *http.Request) {
	given, err := parameters(r)
	if err != nil {
		door.SpringError(w, r, http.StatusBadRequest, "", "the form cannot be read: "+err.Error())
		return
	}
	key, hasKey := given.Get("bizType")
	token, hasToken := given.Get("token")
	if !hasKey || !hasToken {
		missing := "token"
		if !hasKey {
			missing = "bizType"
		}
		door.SpringError(w, r, http.StatusBadRequest,
			"org.springframework.web.bind.MissingServletRequestParameterException",
			fmt.Sprintf("Required String parameter '%s' is not present", missing))
		return
	}
	asked := request{batch: 1, simple: simple}
	if s, _ := given.Get("batchSize"); s != "" {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil {
			door.SpringError(w, r, http.StatusBadRequest,
				"org.springframework.web.method.annotation.MethodArgumentTypeMismatchException",
				fmt.Sprintf("Failed to convert value of type 'java.lang.String' to required type 'java.lang.Integer'; "+
					"nested exception is java.lang.NumberFormatException: For input string: %q", s))
			return
		}
		asked.batch = min(n, maxBatch)
	}
	body, err := t.answer(r.Context(), do, asked, key, token)
	switch {
	case err != nil:
		refuse(w, simple, err)
	case simple:
		door.Body(w, door.Text, body)
	default:
		door.Body(w, door.JSONText, body)
	}
}

// parameters returns those of the form and of the query; most requests have no form.
func parameters(r *http.Request) (door.Query, error) {
	if r.ContentLength == 0 {
		q := door.Query(r.URL.RawQuery)
		return q, q.Check()
	}
	err := r.ParseForm()
	return door.Query(r.Form.Encode()), err
}

// typical is the room that an answer most often needs, in bytes.
const typical = 128

// answer returns the body that answers a request. Its error is Unauthenticated for a wrong
// token, and Denied for one that may not take IDs of the key.
func (t *tinyid) answer(ctx context.Context, do call, asked request, key, token string) ([]byte, error) {
	ctx, err := t.login(ctx, token, key)
	if err != nil {
		return nil, err
	}
	tag, err := foreign.Tag(key)
	if err != nil {
		return nil, err
	}
	asked.tag = string(tag)
	b := make([]byte, 0, typical)
	if asked.simple {
		return do(t, ctx, asked, b)
	}
	if b, err = do(t, ctx, asked, append(b, `{"data":`...)); err != nil {
		return nil, err
	}
	return append(b, `,"code":200,"message":""}`...), nil
}

// refuse answers an error: with its code in JSON, and with nothing in the Simple forms. A
// token that may not take IDs of a bizType is one of another bizType.
func refuse(w http.ResponseWriter, simple bool, err error) {
	status := door.StatusOf(w, err, http.StatusOK)
	if simple {
		w.Header()["Content-Type"] = door.Text
		w.WriteHeader(status)
		return
	}
	refused := struct {
		Data    any    `json:"data"`
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{nil, failed, err.Error()}
	if kind := allocator.KindOf(err); kind == allocator.Denied || kind == allocator.Unauthenticated {
		refused.Code, refused.Message = badToken, "token is error"
	}
	door.JSON(w, status, refused)
}

// login checks a token: one of the door's file, or else one of the room's policy. It returns
// the context for the calls. Its error is Unauthenticated for a wrong token.
func (t *tinyid) login(ctx context.Context, token, key string) (context.Context, error) {
	if t.tokens == nil {
		return t.room.Login(ctx, token)
	}
	if !t.tokens.Allow(token, key) {
		return nil, allocator.Errorf(allocator.Unauthenticated, "the token is not one of this bizType")
	}
	return ctx, nil
}

// next appends a batch: numbers with commas between them, in JSON as an array.
func (t *tinyid) next(ctx context.Context, asked request, b []byte) ([]byte, error) {
	if !asked.simple {
		b = append(b, '[')
	}
	switch {
	case asked.batch == 1:
		id, err := t.room.Next(ctx, asked.tag)
		if err != nil {
			return nil, err
		}
		b = strconv.AppendInt(b, id, 10)
	case asked.batch > 1:
		runs, err := t.room.NextN(ctx, asked.tag, asked.batch)
		if err != nil {
			return nil, err
		}
		for _, run := range runs {
			for i := range run.Count {
				b = append(strconv.AppendInt(b, run.First+i*max(run.Stride, 1), 10), ',')
			}
		}
		b = b[:len(b)-1] // without the last comma
	}
	if !asked.simple {
		b = append(b, ']')
	}
	return b, nil
}

// loadingPercent is how much of a segment is used when its client asks for the next
// (Constants.java).
const loadingPercent = 20

// nextSegment appends a segment: the IDs above its currentId, up to its maxId. The client
// asks for the next one at its loadingId.
func (t *tinyid) nextSegment(ctx context.Context, asked request, b []byte) ([]byte, error) {
	run, err := t.room.NextKept(ctx, asked.tag, 0)
	if err != nil {
		return nil, err
	}
	current := run.First - 1
	loading, last := current+max(1, run.Count*loadingPercent/100), current+run.Count
	if asked.simple {
		b = append(strconv.AppendInt(b, current, 10), ',')
		b = append(strconv.AppendInt(b, loading, 10), ',')
		return append(strconv.AppendInt(b, last, 10), ",1,0"...), nil
	}
	b = strconv.AppendInt(append(b, `{"maxId":`...), last, 10)
	b = strconv.AppendInt(append(b, `,"loadingId":`...), loading, 10)
	b = strconv.AppendInt(append(b, `,"currentId":`...), current, 10)
	return append(b, `,"delta":1,"remainder":0}`...), nil
}

// Tokens says which tokens may take IDs of which bizTypes, as TinyId's table tiny_id_token
// does. They are read from a file, a token and a bizType a line, again each minute: a token
// that leaves the file stops within that.
//
//	# token                            bizType
//	0f673adf80504e2eaa552f5d791b644c   order
//	b5cd5d4ef1f948ac9b2ae9d1ae52d49b   *
type Tokens struct {
	path string
	log  hclog.Logger

	mu    sync.Mutex // guards what follows
	read  time.Time
	pairs pairs
}

// pairs has the bizTypes of each token. It has tokens' digests, which take no longer to
// compare for a token that is nearly right.
type pairs map[[sha256.Size]byte]map[string]bool

func (p pairs) add(token, bizType string) {
	of := sha256.Sum256([]byte(token))
	if p[of] == nil {
		p[of] = make(map[string]bool)
	}
	p[of][bizType] = true
}

func (p pairs) has(token, bizType string) bool {
	of := p[sha256.Sum256([]byte(token))]
	return of[bizType] || of[everything]
}

// everything stands in the file for every bizType.
const everything = "*"

const (
	reread     = time.Minute
	mostTokens = 1 << 20 // bytes of the file
)

// OpenTokens reads the file. Its error is Invalid and names the line: one that is not two
// words, or a file without any.
func OpenTokens(path string, log hclog.Logger) (*Tokens, error) {
	all, err := readTokens(path)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Tokens{path: path, log: log, read: time.Now(), pairs: all}, nil
}

// AnyToken returns tokens of which one is for all bizTypes, and no other is known.
func AnyToken(token string) *Tokens {
	t := &Tokens{pairs: make(pairs)}
	t.pairs.add(token, everything)
	return t
}

// Allow reports whether a token may take IDs of a bizType. If the file cannot be read again,
// what it said before counts, and the log says so each minute.
func (t *Tokens) Allow(token, bizType string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.path != "" && now.Sub(t.read) >= reread {
		t.read = now
		if all, err := readTokens(t.path); err != nil {
			t.log.Error("tinyid: the tokens could not be read again; those read before count", "error", err)
		} else {
			t.pairs = all
		}
	}
	return t.pairs.has(token, bizType)
}

func readTokens(path string) (pairs, error) {
	data, err := smallfile.Read("tinyid-tokens", path, mostTokens)
	if err != nil {
		return nil, err
	}
	all := make(pairs)
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) != 2 {
			return nil, allocator.Errorf(allocator.Invalid,
				"tinyid-tokens: %s line %d has %d words; allowed: a token and a bizType", path, n, len(words))
		}
		all.add(words[0], words[1])
	}
	if err := lines.Err(); err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "tinyid-tokens: %s: %w", path, err)
	}
	if len(all) == 0 {
		return nil, allocator.Errorf(allocator.Invalid,
			"tinyid-tokens: %s has no token; allowed: lines of a token and a bizType", path)
	}
	return all, nil
}
