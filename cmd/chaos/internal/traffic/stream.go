package traffic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

const (
	// streamFor is how long a stream lives, and streamWindow how many requests are sent at
	// once.
	streamFor    = 5 * time.Second
	streamWindow = 50
)

// streams is a caller of Stream: one stream after the other, in bursts.
func (l *Load) streams(ctx context.Context, ids marchv1.IDServiceClient, name allocator.Instance,
	tag allocator.Tag, rate int) (err error) {
	file, err := l.file(fmt.Sprintf("%s-%s-stream", name, tag))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	every := time.Second * streamWindow / time.Duration(max(rate, 1))
	for ctx.Err() == nil {
		asks := runlog.Answer{Sent: time.Now(), Room: l.Room, Instance: name, Tag: tag}
		bad, err := l.stream(ctx, ids, file, asks, every)
		if bad != nil {
			return bad
		}
		if err != nil && ctx.Err() == nil {
			if err := l.failed(file, asks, err); err != nil {
				return err
			}
			pause(ctx, retryPause)
		}
	}
	return nil
}

// stream sends bursts of requests and takes their answers, for streamFor. bad is an error of
// this program.
func (l *Load) stream(ctx context.Context, ids marchv1.IDServiceClient, file *runlog.Writer, issued runlog.Answer,
	every time.Duration) (bad, err error) {
	// No deadline: it would end the stream in the middle of a burst.
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stream, err := ids.Stream(streaming)
	if err != nil {
		return nil, err
	}
	for began := time.Now(); ctx.Err() == nil && time.Since(began) < streamFor; {
		issued.Sent, issued.Runs = time.Now(), nil
		hangs := time.AfterFunc(patience, cancel)
		var group errgroup.Group
		group.Go(func() error {
			for range streamWindow {
				if err := stream.Send(&marchv1.NextRequest{Tag: string(issued.Tag)}); err != nil {
					return nil // Recv has the reason
				}
			}
			return nil
		})
		for range streamWindow {
			var answer *marchv1.NextResponse
			if answer, err = stream.Recv(); err != nil {
				break
			}
			issued.Runs = appendID(issued.Runs, answer.GetId())
		}
		_ = group.Wait() // it returns nil
		hangs.Stop()
		issued.Received = time.Now()
		if len(issued.Runs) > 0 {
			if bad := l.got(file, issued); bad != nil {
				return bad, nil
			}
		}
		if err != nil {
			return nil, err
		}
		pause(ctx, every-time.Since(issued.Sent))
	}
	return nil, stream.CloseSend()
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

// short is an error if callers got fewer IDs than they asked for.
func short(who string, want int64, runs []allocator.Run) error {
	if got := count(runs); got != want {
		return fmt.Errorf("%s: asked for %d IDs and got %d", who, want, got)
	}
	return nil
}

// client is a program that uses the Go client: it holds segments of its own.
func (l *Load) client(ctx context.Context, tag allocator.Tag, p *pacer) (err error) {
	file, err := l.file(fmt.Sprintf("%s-client", tag))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	opts := client.Options{Reserve: 2 * time.Second, MaxStep: 1_000_000, Timeout: time.Second, OpaqueKeys: l.Keys,
		TLS: l.TLS}
	for _, address := range l.Instances {
		opts.Addresses = append(opts.Addresses, address.GRPC)
	}
	slices.Sort(opts.Addresses)
	ids, err := client.New(ctx, opts)
	if err != nil {
		return err
	}
	defer ids.Close()
	handle, err := ids.Tag(string(tag))
	if err != nil {
		return err
	}
	for {
		n, ok := p.wait(ctx)
		if !ok {
			return nil
		}
		issued := runlog.Answer{Sent: time.Now(), Room: l.Room, Tag: tag}
		calling, cancel := context.WithTimeout(ctx, patience)
		for range n % 100 { // some one by one, the others at once
			id, one := handle.TryNext()
			if !one {
				break
			}
			issued.Runs = appendID(issued.Runs, id)
		}
		want := n - n%100 + 1
		runs, err := handle.NextN(calling, want, nil)
		cancel()
		if err == nil {
			if bad := short(issued.Who(), want, runs); bad != nil {
				return bad
			}
		}
		issued.Runs = append(issued.Runs, runs...)
		issued.Received = time.Now()
		if len(issued.Runs) > 0 {
			if err := l.got(file, issued); err != nil {
				return err
			}
		}
		if err != nil && ctx.Err() == nil {
			if err := l.failed(file, issued, err); err != nil {
				return err
			}
			pause(ctx, retryPause)
		}
	}
}
