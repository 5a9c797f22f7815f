package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/internal/setting"
)

// benchFlags describe the load of march bench.
type benchFlags struct {
	room        *target
	Tag         string        `flag:"tag" help:"the tag"`
	Mode        string        `flag:"mode" of:"unary batch stream lease" help:"unary, batch, stream, lease"`
	Connections int           `flag:"connections" least:"1" most:"1000" help:"connections, 1 to 1000"`
	Workers     int           `flag:"concurrency" least:"1" most:"10000" help:"callers or streams at once, 1 to 10000"`
	Window      int           `flag:"window" least:"1" most:"10000" help:"requests under way on each stream, 1 to 10000"`
	Count       int64         `flag:"count" help:"IDs per batch or lease"`
	Duration    time.Duration `flag:"duration" help:"how long to run"`
	Quiet       bool          `flag:"quiet,q" help:"no progress line"`
}

func newBench(c *common) *cobra.Command {
	f := &benchFlags{room: c.target(), Tag: "bench", Connections: 2, Workers: 32, Window: 128, Count: 1000,
		Duration: 10 * time.Second}
	cmd := command(callRow{
		use: "bench", short: "Put load on a running room and measure it",
		long: `Put load on a running room and measure it. The IDs are issued for real: use a
tag that no other program uses.

Modes: unary (Next), batch (NextBatch), stream (Stream, with --window requests
under way on each), lease (Lease).`,
		example: `  march bench --mode unary --concurrency 64 --duration 10s
  march bench --mode stream -o json`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error {
		if err := f.validate(); err != nil {
			return usageError{err}
		}
		return f.run(cmd, c)
	})
	f.room.flags(cmd, "room", defaultRoom)
	addFlags(cmd, f)
	return c.outputFlag(cmd)
}

func (f *benchFlags) validate() error {
	if err := setting.Check(f); err != nil {
		return err
	}
	most := map[string]int64{"batch": api.MaxBatch, "lease": api.MaxLease}[f.Mode]
	switch _, err := allocator.ParseTag(f.Tag); {
	case err != nil:
		return err
	case most > 0 && (f.Count < 1 || f.Count > most):
		return invalidf("count: %d; allowed in mode %s: 1 to %d", f.Count, f.Mode, most)
	case f.Duration <= 0:
		return invalidf("duration: %v; allowed: above 0", f.Duration)
	}
	return nil
}

// dial opens the connections, of which one is first. hangUp closes them.
func (f *benchFlags) dial() (first *target, conns []*grpc.ClientConn, hangUp func(), err error) {
	hangUp = func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
	for range f.Connections {
		if first, err = f.room.dial(); err != nil {
			hangUp()
			return nil, nil, nil, err
		}
		conns = append(conns, first.conn)
	}
	return first, conns, hangUp, nil
}

func (f *benchFlags) run(cmd *cobra.Command, c *common) error {
	first, conns, hangUp, err := f.dial()
	if err != nil {
		return err
	}
	defer hangUp()
	cfg := load.Config{Workers: f.Workers, Duration: f.Duration, Window: f.Window}
	switch f.Mode {
	case "unary":
		cfg.New = load.Unary(conns, f.Tag)
	case "batch":
		cfg.New = load.Batch(conns, f.Tag, f.Count)
	case "lease":
		cfg.New = load.Lease(conns, f.Tag, f.Count)
	case "stream":
		cfg.NewStream = load.Streams(conns, f.Tag)
	}
	// If the first call fails, all others would fail, too.
	err = first.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := load.Unary([]*grpc.ClientConn{conn}, f.Tag)(0)(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if line := newProgress(c, soon, soon); !f.Quiet {
		cfg.Every, cfg.Progress = line.every, sayLoad(line, f.Duration)
		defer line.end()
	}
	result, err := load.Run(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	if err := f.print(c, result); err != nil {
		return err
	}
	if result.Errors > 0 {
		return allocator.Errorf(allocator.KindOf(result.FirstError), "%d calls failed, the first with: %w",
			result.Errors, result.FirstError)
	}
	return nil
}

func sayLoad(p *progress, total time.Duration) func(load.Result) {
	var last load.Result
	return func(r load.Result) {
		since := (r.Elapsed - last.Elapsed).Seconds()
		p.say(fmt.Sprintf("%3.0f%%  %s of %s  %.0f IDs/s  %.0f calls/s  %d failed",
			min(100*r.Elapsed.Seconds()/total.Seconds(), 100), r.Elapsed.Round(time.Second), total,
			float64(r.IDs-last.IDs)/since, float64(r.Calls-last.Calls)/since, r.Errors))
		last = r
	}
}

// quantiles are the latencies that are shown.
var quantiles = []float64{50, 90, 99, 99.9, 99.99, 100}

func (f *benchFlags) print(c *common, r load.Result) error {
	latency := make(map[string]string, len(quantiles))
	for _, q := range quantiles {
		latency[fmt.Sprintf("p%v", q)] = time.Duration(r.Latency.ValueAtQuantile(q)).String()
	}
	return c.print(map[string]any{
		"mode": f.Mode, "concurrency": f.Workers, "connections": f.Connections, "seconds": r.Elapsed.Seconds(),
		"calls": fmt.Sprint(r.Calls), "ids": fmt.Sprint(r.IDs), "errors": fmt.Sprint(r.Errors),
		"calls_per_second": r.CallsPerSecond(), "ids_per_second": r.IDsPerSecond(), "latency": latency,
	}, func(w *tabwriter.Writer) { f.text(w, r) })
}

func (f *benchFlags) text(w *tabwriter.Writer, r load.Result) {
	put(w, "mode\t%s, %d at once on %d connections, %s\n", f.Mode, f.Workers, f.Connections,
		r.Elapsed.Round(time.Millisecond))
	put(w, "IDs\t%d\t%.0f/s\n", r.IDs, r.IDsPerSecond())
	put(w, "calls\t%d\t%.0f/s\n", r.Calls, r.CallsPerSecond())
	put(w, "failed\t%d\n", r.Errors)
	for _, q := range quantiles {
		put(w, "p%v\t%s\n", q, time.Duration(r.Latency.ValueAtQuantile(q)).Round(time.Microsecond))
	}
}
