package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// caller is a way in which callers ask for IDs: one for each of its tags, at each instance.
type caller struct {
	name    string
	tags    func(Config) []allocator.Tag
	share   int   // of the rate, in thousandths, of all these callers
	largest int64 // how many IDs it asks for at most
	ask     ask
	room    bool // one for the whole room, and none for each instance
}

// ask asks for a number of IDs of a tag, and returns those of each tag that it got.
type ask func(ctx context.Context, l *Load, at *place, tag allocator.Tag, n int64) (ids, error)

type ids map[allocator.Tag][]allocator.Run

func counters(c Config) []allocator.Tag { return c.Tags }
func times(c Config) []allocator.Tag    { return c.Times }
func others(c Config) []allocator.Tag   { return c.Others }
func doors(Config) []allocator.Tag      { return []allocator.Tag{Door} }
func allCounts(c Config) []allocator.Tag {
	return append(append([]allocator.Tag{}, c.Tags...), c.Others...)
}

// Door is the tag of the doors' callers: one of Others.
const Door allocator.Tag = "door"

// callers are all rows. Half of the IDs come by batches, and most of the rest by the Go client: single IDs cost the
// most.
var callers = []caller{
	{"batch", counters, 500, largestBatch, batch, false},
	{"client", counters, 430, largestBatch, goClient, true},
	{"stream", counters, 50, 50, stream, false},
	{"batch", times, 20, smallBatch, batch, false},
	{"client", times, 10, smallBatch, goClient, true},
	{"batch", others, 10, smallBatch, batch, false},
	{"client", others, 5, smallBatch, goClient, true},
	{"one", allCounts, 2, 1, one, false},
	{"contiguous", allCounts, 5, smallBatch, contiguous, false},
	{"many", allCounts, 5, smallBatch, many, false},
	{"redis", doors, 1, 1, incr, false},
	{"leaf", doors, 1, 1, web("leaf", "/api/segment/get/%s?n=%d"), false},
	{"tinyid", doors, 1, smallBatch,
		web("tinyid", "/tinyid/id/nextIdSimple?token="+Token+"&bizType=%s&batchSize=%d"), false},
	{"cosid", doors, 1, 1, web("cosid", "/ids/%s?n=%d"), false},
}

// Token is what TinyId's callers prove their right by.
const Token = "chaos"

// place is an instance, as its callers reach it.
type place struct {
	name  allocator.Instance
	conn  *grpc.ClientConn
	ids   marchv1.IDServiceClient
	doors map[string]string
	redis *redis.Pool

	// of one caller:
	stream grpc.BidiStreamingClient[marchv1.NextRequest, marchv1.NextResponse]
	cancel context.CancelFunc // ends the stream
	opened time.Time
	client *client.Client
	handle *client.Tag
}

func newPlace(name allocator.Instance, at Addresses, as api.Credentials) (*place, error) {
	conn, err := api.Dial(at.GRPC, append(as.Options(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}))...)
	if err != nil {
		return nil, err
	}
	return &place{name: name, conn: conn, ids: marchv1.NewIDServiceClient(conn), doors: at.Doors,
		redis: &redis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", at.Doors["redis"], redis.DialReadTimeout(patience))
		}}}, nil
}

func (p *place) close() error { return errors.Join(p.conn.Close(), p.redis.Close()) }

// end ends what a caller opened for itself.
func (p *place) end() {
	if p.stream != nil {
		_ = p.stream.CloseSend()
		p.cancel()
		p.stream = nil
	}
	if p.client != nil {
		p.client.Close()
	}
}

// wrong is an answer that no correct March gives. It ends the run.
type wrong struct{ error }

// asks is a caller of a row: it asks, records, and asks again.
func (l *Load) asks(ctx context.Context, row caller, at *place, tag allocator.Tag, p *pacer) (err error) {
	file, err := l.file(fmt.Sprintf("%s-%s-%s", at.name, tag, row.name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	defer at.end()
	for {
		n, ok := p.wait(ctx)
		if !ok {
			return nil
		}
		got := runlog.Answer{Sent: time.Now(), Room: l.Room, Instance: at.name, Tag: tag}
		// Not ctx: the IDs of the last call must be recorded.
		calling, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		answer, err := row.ask(calling, l, at, tag, n)
		cancel()
		if bad := (wrong{}); errors.As(err, &bad) {
			return fmt.Errorf("%s, %s: %w", got.Who(), row.name, bad.error)
		}
		got.Received = time.Now()
		for of, runs := range answer { // also some that came before an error
			if got.Tag, got.Runs = of, runs; len(runs) > 0 {
				if err := l.got(file, got); err != nil {
					return err
				}
			}
		}
		if err != nil {
			got.Tag = tag
			if err := l.failed(file, got, err); err != nil {
				return err
			}
			store.Sleep(ctx, retryPause)
		}
	}
}

func one(ctx context.Context, l *Load, at *place, tag allocator.Tag, _ int64) (ids, error) {
	answer, err := at.ids.Next(ctx, &marchv1.NextRequest{Tag: string(tag)})
	if err != nil {
		return nil, err
	}
	return l.read(tag, 1, answer)
}

// read returns the IDs of answers, after it compared their texts.
func (l *Load) read(tag allocator.Tag, n int64, answers ...*marchv1.NextResponse) (ids, error) {
	var runs []allocator.Run
	var written []string
	for _, answer := range answers {
		runs = appendID(runs, answer.GetId())
		if answer.GetText() != "" {
			written = append(written, answer.GetText())
		}
	}
	return ids{tag: runs}, l.check(tag, n, runs, written)
}

// check compares an answer with what was asked for, and its texts with its IDs.
func (l *Load) check(tag allocator.Tag, n int64, runs []allocator.Run, written []string) error {
	if got := count(runs); got != n {
		return wrong{fmt.Errorf("asked for %d IDs and got %d", n, got)}
	}
	text, k := l.Texts[tag], 0
	for _, run := range runs {
		for i := range run.Count {
			if text == nil {
				break
			}
			id := run.First + i*max(run.Stride, 1)
			want, err := text.Append(nil, id)
			if err != nil || k >= len(written) || written[k] != string(want) {
				return wrong{fmt.Errorf("ID %d is %q; want %q, %w", id, written, want, err)}
			}
			k++
		}
	}
	if k != len(written) {
		return wrong{fmt.Errorf("%d texts of %d IDs", len(written), k)}
	}
	return nil
}

func batch(ctx context.Context, l *Load, at *place, tag allocator.Tag, n int64) (ids, error) {
	return l.batch(ctx, at, &marchv1.NextBatchRequest{Tag: string(tag), Count: n, Texts: l.Texts[tag] != nil})
}

// contiguous asks for IDs in one run. A room's range may be narrower than they are many.
func contiguous(ctx context.Context, l *Load, at *place, tag allocator.Tag, n int64) (ids, error) {
	request := &marchv1.NextBatchRequest{Tag: string(tag), Count: n, Texts: l.Texts[tag] != nil, Contiguous: true}
	got, err := l.batch(ctx, at, request)
	if err != nil && allocator.KindOf(err) == allocator.Invalid && n > 1 {
		request.Count = 1
		got, err = l.batch(ctx, at, request)
	}
	if err == nil && len(got[tag]) != 1 {
		err = wrong{fmt.Errorf("%d runs of contiguous IDs", len(got[tag]))}
	}
	return got, err
}

func (l *Load) batch(ctx context.Context, at *place, request *marchv1.NextBatchRequest) (ids, error) {
	answer, err := at.ids.NextBatch(ctx, request)
	if err != nil {
		return nil, err
	}
	runs := api.AppendRuns(nil, answer.GetRuns())
	tag := allocator.Tag(request.GetTag())
	return ids{tag: runs}, l.check(tag, request.GetCount(), runs, answer.GetTexts())
}

// many asks for IDs of two tags in one call.
func many(ctx context.Context, l *Load, at *place, tag allocator.Tag, n int64) (ids, error) {
	request := &marchv1.NextManyRequest{Tags: []*marchv1.TagCount{{Tag: string(tag), Count: n}}}
	if tag != Door {
		request.Tags = append(request.Tags, &marchv1.TagCount{Tag: string(Door), Count: 1})
	}
	answer, err := at.ids.NextMany(ctx, request)
	if err != nil {
		return nil, err
	}
	all := make(ids)
	for i, asked := range request.GetTags() {
		got, err := l.read(allocator.Tag(asked.GetTag()), asked.GetCount(), answer.GetTags()[i].GetIds()...)
		if err != nil {
			return nil, err
		}
		for tag, runs := range got {
			all[tag] = runs
		}
	}
	return all, nil
}

// incr is a caller of the door for Redis.
func incr(ctx context.Context, _ *Load, at *place, tag allocator.Tag, _ int64) (ids, error) {
	conn, err := at.redis.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	id, err := redis.Int64(redis.DoContext(conn, ctx, "INCR", string(tag)))
	if err != nil {
		return nil, err
	}
	return ids{tag: {{First: id, Count: 1}}}, nil
}

// web returns a caller of a door over HTTP, which answers IDs with commas in between.
func web(door, path string) ask {
	return func(ctx context.Context, l *Load, at *place, tag allocator.Tag, n int64) (ids, error) {
		url := "http://" + at.doors[door] + fmt.Sprintf(path, tag, n)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return nil, err
		}
		body, err := fetch(request)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", door, err)
		}
		var runs []allocator.Run
		for word := range strings.SplitSeq(strings.TrimSpace(string(body)), ",") {
			id, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %.200s: %w", door, body, err)
			}
			runs = appendID(runs, id)
		}
		return ids{tag: runs}, l.check(tag, n, runs, nil)
	}
}

// stream sends requests without waiting for answers. A stream lives for some seconds.
func stream(ctx context.Context, _ *Load, at *place, tag allocator.Tag, n int64) (ids, error) {
	const streamFor = 5 * time.Second
	if time.Since(at.opened) > streamFor {
		at.end()
	}
	if at.stream == nil {
		streaming, cancel := context.WithCancel(context.WithoutCancel(ctx)) // no deadline: it is for all calls
		s, err := at.ids.Stream(streaming)
		if err != nil {
			cancel()
			return nil, err
		}
		at.stream, at.cancel, at.opened = s, cancel, time.Now()
	}
	defer context.AfterFunc(ctx, at.cancel)() // it hangs
	var group errgroup.Group
	group.Go(func() error {
		for range n {
			if err := at.stream.Send(&marchv1.NextRequest{Tag: string(tag)}); err != nil {
				return nil // Recv has the reason
			}
		}
		return nil
	})
	var runs []allocator.Run
	var err error
	for range n {
		var answer *marchv1.NextResponse
		if answer, err = at.stream.Recv(); err != nil {
			break
		}
		runs = appendID(runs, answer.GetId())
	}
	_ = group.Wait() // it returns nil
	if err != nil {
		at.end()
	}
	return ids{tag: runs}, err
}

// goClient is a program that uses the Go client: it holds segments, or windows, of its own. It takes some IDs
// one by one, and the others at once.
func goClient(ctx context.Context, l *Load, at *place, tag allocator.Tag, n int64) (ids, error) {
	if at.client == nil {
		opts := client.Options{Reserve: 2 * time.Second, MaxStep: 1_000_000, Timeout: time.Second, OpaqueKeys: l.Keys,
			TLS: l.TLS}
		for _, address := range l.Instances {
			opts.Addresses = append(opts.Addresses, address.GRPC)
		}
		slices.Sort(opts.Addresses)
		c, err := client.New(context.WithoutCancel(ctx), opts)
		if err != nil {
			return nil, err
		}
		at.client = c
		if at.handle, err = c.Tag(string(tag)); err != nil {
			return nil, wrong{err}
		}
	}
	var runs []allocator.Run
	for range n % 100 {
		id, one := at.handle.TryNext()
		if !one {
			break
		}
		runs = appendID(runs, id)
	}
	want := n - n%100 + 1
	more, err := at.handle.NextN(ctx, want, nil)
	if got := count(more); err == nil && got != want {
		err = wrong{fmt.Errorf("asked for %d IDs and got %d", want, got)}
	}
	return ids{tag: append(runs, more...)}, err
}

// appendID adds an ID to runs.
func appendID(runs []allocator.Run, id int64) []allocator.Run {
	if n := len(runs); n > 0 && runs[n-1].First+runs[n-1].Count == id {
		runs[n-1].Count++
		return runs
	}
	return append(runs, allocator.Run{First: id, Count: 1})
}

func count(runs []allocator.Run) (n int64) {
	for _, run := range runs {
		n += run.Count
	}
	return n
}
