package access_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/peer"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/race"
)

// told runs a gate for a time, during which each second does something, and returns the refusals that audit took.
func told(w *world, lasts time.Duration, second func(n int), audit func(access.Refusal) error) (all []access.Refusal) {
	ctx, stop := context.WithCancel(bg)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.gate.Run(ctx, func(_ context.Context, r access.Refusal) error {
			if err := audit(r); err != nil {
				return err
			}
			all = append(all, r)
			return nil
		})
	}()
	for n := range int(lasts / time.Second) {
		second(n)
		time.Sleep(time.Second)
	}
	stop()
	<-ended
	return all
}

// peerAt is the context of a call from an address.
func peerAt(address string) context.Context {
	return peer.NewContext(bg, &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(address)}})
}

func (w *world) gateOfTokens(log *bytes.Buffer) {
	w.t.Helper()
	var err error
	if w.gate, err = access.New(access.Config{Policy: w.path("policy.yaml"), Tokens: w.path("tokens"),
		Logger: hclog.New(&hclog.LoggerOptions{Output: log})}); err != nil {
		w.t.Fatal(err)
	}
}

// Junk of callers that proved nothing, at 1,000 calls a second for minutes (ten in .ci/run), from as many addresses,
// hides no refusal of a proven subject, and is itself told in bounded number, each attempt counted.
func TestJunkHidesNoRefusal(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w.gateOfTokens(&log)
		operators := map[string]int{}
		minutes := 10
		if race.Enabled || !programs.All() { // .ci/run has all
			minutes = 2
		}
		all := told(w, time.Duration(minutes)*time.Minute+20*time.Second, func(n int) {
			if n >= minutes*60 {
				return
			}
			for k := range 1000 {
				at := fmt.Sprintf("192.0.%d.%d", n%256, k%250)
				_, _ = w.gate.Login(peerAt(at), access.Credentials{Token: fmt.Sprintf("march_%d", k), Address: at})
				ctx := must(w.gate.Login(peerAt(fmt.Sprintf("2001:db8:%x:%x::%x", n, k, k)), access.Credentials{}))(t)
				_ = w.gate.Take(ctx, fmt.Sprintf("junk-%d-%d\n\x1b[2J", n, k), 1)
			}
			if n%60 == 0 {
				for _, name := range []string{"operator", "viewer"} {
					operators[name]++
					_ = w.may(w.tokens[name], "ConsoleService/DeleteTag", "order")
				}
			}
		}, func(access.Refusal) error { return nil })
		junk, junks := 0, 0
		for _, r := range all {
			if name, proven := strings.CutPrefix(r.Subject, "token:"); proven {
				if r.Call != "ConsoleService/DeleteTag" || r.Tag != "order" {
					t.Errorf("%+v", r)
				}
				operators[name] -= r.Times
				continue
			}
			junks++
			if r.Subject == "anonymous" {
				junk += r.Times
			}
		}
		if operators["operator"] != 0 || operators["viewer"] != 0 {
			t.Errorf("refusals of operators that are not told: %v", operators)
		}
		if most := 8 + minutes + 1; junks > most {
			t.Errorf("junk has %d entries in %d minutes, at most %d", junks, minutes, most)
		}
		if junk == 0 {
			t.Error("no junk is told")
		}
		if strings.Contains(log.String(), "\x1b") || strings.Contains(log.String(), "\x00") {
			t.Error("a control character is in the log")
		}
	})
}

// A proven subject that makes very many different calls, or is refused for very long, takes a bounded part of the
// audit, and hides nothing of another subject. No attempt is lost.
func TestOneSubjectHidesNoOther(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(*testing.T) {
		w.gateOfTokens(new(bytes.Buffer))
		tried := map[string]int{}
		calls := []string{"SkipTag", "DeleteTag", "CreateTag", "UpdateTag", "PrescaleTag", "ForgetInstance",
			"InitLayout", "UpdateCluster", "UpgradeCluster", "ConfirmInstance", "ReportMirror", "ApplyMigration"}
		all := told(w, time.Hour, func(n int) {
			if n >= 45*60 { // what waits is told meanwhile
				return
			}
			tried["token:viewer"]++
			_ = w.may(w.tokens["viewer"], "ConsoleService/"+calls[n%len(calls)], fmt.Sprintf("tag-%d", n))
			if n == 30*60 {
				tried["token:nobody"]++
				_ = w.may(w.tokens["nobody"], "ConsoleService/DeleteTag", "order")
			}
		}, func(access.Refusal) error { return nil })
		entries := map[string]int{}
		for _, r := range all {
			entries[r.Subject]++
			tried[r.Subject] -= r.Times
		}
		if tried["token:viewer"] != 0 || tried["token:nobody"] != 0 {
			t.Errorf("not told: %v", tried)
		}
		if entries["token:viewer"] > 8+60 || entries["token:nobody"] != 1 {
			t.Errorf("entries by subject: %v", entries)
		}
	})
}

// What the audit does not take waits, and counts on.
func TestRefusalsWaitForTheAudit(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		w.gateOfTokens(new(bytes.Buffer))
		var away atomic.Bool
		all := told(w, 5*time.Minute, func(n int) {
			away.Store(n < 120)
			if n < 180 {
				_ = w.may(w.tokens["viewer"], "ConsoleService/SkipTag", "order")
			}
		}, func(access.Refusal) error {
			if away.Load() {
				return errors.New("etcd is away")
			}
			return nil
		})
		times := 0
		for _, r := range all {
			times += r.Times
			if r.Why != allocator.Denied {
				t.Errorf("%+v", r)
			}
		}
		if times != 180 {
			t.Errorf("%d of 180 refusals are told: %+v", times, all)
		}
	})
}
