package main

import (
	"context"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
)

// supervise tells systemd that a server is up, where it is of a unit of Type=notify, and that it still lives, twice in
// each WatchdogSec of the unit. The function that it returns says that the server ends. Elsewhere nothing happens.
func supervise(ctx context.Context, log hclog.Logger) (end func()) {
	say := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			log.Warn("systemd cannot be told of this server's state", "state", state, "error", err)
		}
	}
	say(daemon.SdNotifyReady)
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the unit's watchdog is not in force", "error", err)
	}
	ctx, stop := context.WithCancel(ctx)
	var pinging sync.WaitGroup
	if every > 0 {
		pinging.Go(func() {
			for again := time.NewTicker(every / 2); ; {
				select {
				case <-ctx.Done():
					again.Stop()
					return
				case <-again.C:
					say(daemon.SdNotifyWatchdog)
				}
			}
		})
	}
	stopping := context.AfterFunc(ctx, func() { say(daemon.SdNotifyStopping) })
	return func() {
		if stopping() {
			say(daemon.SdNotifyStopping)
		}
		stop()
		pinging.Wait()
	}
}
