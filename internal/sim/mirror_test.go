package sim_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/recovery"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
)

// Consoles keep mirrors. They lag, as their links do, they restart, with a file or with nothing,
// and they follow whatever etcd their console is led to. Recover asks those that run. In half of the
// clusters consoles keep none, as those of more tags than they have room for: there a recover has
// only what instances and journals know.

// mirrors sets the mirror of a console: with a file, in worlds that have journals.
func (w *world) mirrors(cfg *console.Config, id string) {
	if w.mirrorless {
		cfg.MirrorTags = 0
		return
	}
	cfg.MirrorTags = 100
	if name, _, _ := strings.Cut(id, "#"); w.mirrorDir != "" {
		cfg.Mirror = filepath.Join(w.mirrorDir, name)
	}
}

// makeMirrorDir makes the folder of the mirrors' files: several runs may share one of journals.
func (w *world) makeMirrorDir() {
	if w.journals == "" {
		return
	}
	var err error
	if w.mirrorDir, err = os.MkdirTemp(filepath.Dir(w.journals), "mirrors"); err != nil {
		w.Errorf("%v", err)
	}
}

// mirrorsAt returns what asks the mirror at an address over a link: recover finds the addresses in etcd.
func (w *world) mirrorsAt(l *link) func(address string) recovery.AskMirror {
	return func(address string) recovery.AskMirror {
		return func(_ context.Context, q mirror.Question, use func(mirror.Part) error) (a mirror.Answer, err error) {
			err = allocator.Errorf(allocator.Unavailable, "sim: no console answers at %s", address)
			for _, slot := range w.consoles {
				if p := slot.running(); p != nil && p.address == address {
					a, err = askMirror(slot, q, use)
				}
			}
			w.log("%-12s asks the mirror at %s: %v", l.name, address, kind(err))
			w.count("mirrors that recover found in etcd: "+kind(err), 1)
			return a, err
		}
	}
}

// askMirror asks a console's process for its mirror.
func askMirror(s *slot, q mirror.Question, use func(mirror.Part) error) (mirror.Answer, error) {
	p := s.running()
	if p == nil || !p.runs() || p.link.held(false) > 0 {
		return mirror.Answer{}, allocator.Errorf(allocator.Unavailable, "sim: console %s does not answer", s.name)
	}
	stream := &mirrored{use: use}
	request := &marchv1.ReportMirrorRequest{ClusterUuid: q.UUID, AfterSequence: int64(q.After)}
	err := p.console.ReportMirror(request, stream)
	return stream.answer, err
}

// mirrored takes the parts of a console's answer.
type mirrored struct {
	grpc.ServerStream

	use    func(mirror.Part) error
	answer mirror.Answer
}

// Context implements grpc.ServerStream.
func (*mirrored) Context() context.Context { return context.Background() }

// Send implements grpc.ServerStreamingServer.
func (m *mirrored) Send(r *marchv1.ReportMirrorResponse) error {
	var p mirror.Part
	if err := json.Unmarshal(r.GetPart(), &p); err != nil {
		return err
	}
	m.answer = mirror.Answer{Console: r.GetConsole(), Process: r.GetProcess(), Tick: uint32(r.GetSequence())}
	return m.use(p)
}

// mirrored reports whether the mirrors that answer saw every lease that was ever made: then an
// operator who says so tells the truth, and recover's own margin must do.
func (w *world) mirrored() bool {
	seen := make(map[allocator.Tag]int64)
	for _, slot := range w.consoles {
		_, _ = askMirror(slot, mirror.Question{UUID: w.uuid()}, func(p mirror.Part) error { // it may not answer
			if p.Marks != nil {
				for i, tag := range p.Marks.Tags {
					seen[tag] = max(seen[tag], p.Marks.Next[i])
				}
			}
			return nil
		})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remember()
	for _, tag := range w.tags {
		if w.mu.past.highest[tag] > seen[tag] {
			return false
		}
	}
	return true
}

func (w *world) uuid() string { return stored[struct{ UUID string }](w, "identity").UUID }

// trust has the operator go on by what mirrors saw, where that is all, rather than with a margin
// above everything. Without a margin recover may refuse to guess: then the operator gives one.
func (r *recovering) trust(cfg *recovery.Config, dry func(recovery.Config) error) {
	if len(cfg.Without) == 0 {
		return
	}
	given := cfg.Margin
	if given != nil && (r.left || len(r.missing) > 0 || r.d.chance(3) || !r.w.mirrored()) {
		return
	}
	cfg.Margin = nil
	again := *cfg
	again.Apply, again.Wait = false, 0
	err := dry(again)
	switch {
	case err == nil && given != nil:
		r.w.count("recovers with recover's own margin, of lost leases", 1)
	case err != nil && strings.Contains(err.Error(), "--margin"):
		r.w.count("recovers that refused to guess", 1)
		if cfg.Margin = given; given == nil {
			cfg.Margin = r.w.margin()
		}
	case given != nil:
		cfg.Margin = given
	}
}
