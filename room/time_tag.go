package room

import (
	"time"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/room/timetags"
)

// startTimes makes what issues time-ordered IDs. Its error is Invalid.
func (s *Server) startTimes() error {
	cfg := worker.DefaultConfig()
	cfg.PinnedWindow, cfg.AgreeClock, cfg.Logger = s.cfg.WorkerWindow, s.cfg.AgreeClock, s.log
	workers, err := worker.New(s.instance, cfg)
	if err == nil {
		s.times = timetags.New(timetags.Config{Workers: workers, Pin: s.cfg.Worker, Logger: s.log})
	}
	return err
}

// pinned returns the number of a pin, nil where none is chosen.
func pinned(p worker.Pin) *int64 {
	if number, is := p.Number(); is {
		return &number
	}
	return nil
}

// timeTagChanged takes up the settings of a tag of time-ordered IDs, or that a tag of any
// kind was deleted.
func (s *Server) timeTagChanged(change ledger.TagChange) {
	if s.times.Get(string(change.Name)) == nil {
		return
	}
	if change.Settings == nil {
		s.times.Update(change.Name, nil)
		s.lines.deleted.Log(time.Now(), s.log.Info, "tag deleted", "tag", change.Name)
		return
	}
	s.times.Update(change.Name, change.Settings.Time)
	s.lines.updated.Log(time.Now(), s.log.Info, "tag updated", "tag", change.Name)
}
