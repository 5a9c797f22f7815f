package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// Machines is the name of the reserved range that the machine IDs come from.
const Machines = "machines"

// machineClients is how many clients of CosId an instance has.
const machineClients = 3

// machines is a client of CosId: it takes a machine ID, says for some seconds that it lives, gives the ID back, and
// takes one again.
func (l *Load) machines(ctx context.Context, at *place, k int) (err error) {
	h := runlog.Holding{Client: fmt.Sprintf("%s-%d", at.name, k), Instance: at.name}
	file, err := runlog.CreateHoldings(l.Dir, h.Client)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	r := rand.New(rand.NewPCG(l.Seed, uint64(1_000_000+k)))
	for store.Sleep(ctx, time.Duration(r.Int64N(int64(2*time.Second)))) {
		body, err := l.machine(ctx, at, http.MethodPost, h.Client)
		if err != nil {
			continue
		}
		var answer struct{ MachineID *int64 }
		if err := json.Unmarshal(body, &answer); err != nil || answer.MachineID == nil {
			return fmt.Errorf("%s: no machine ID: %.200s", h.Client, body)
		}
		h.Number, h.From = *answer.MachineID, time.Now()
		for n := r.IntN(8); n > 0 && store.Sleep(ctx, time.Second); n-- {
			_, err = l.machine(ctx, at, http.MethodPatch, h.Client)
			if err != nil && strings.Contains(err.Error(), "M-0") {
				break // an error of any other kind leaves the client its ID: it is not fenced
			}
		}
		h.Until = time.Now()
		if err := file.Add(h); err != nil {
			return err
		}
		_, _ = l.machine(ctx, at, http.MethodDelete, h.Client) // otherwise the next one that it gets is the same
	}
	return nil
}

// machine makes a call of the door for CosId.
func (l *Load) machine(ctx context.Context, at *place, method, client string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	query := url.Values{"machineBit": {"10"}, "instanceId": {client}, "stable": {"false"},
		"safeGuardDuration": {"PT5M"}}
	request, err := http.NewRequestWithContext(ctx, method,
		"http://"+at.doors["cosid"]+"/machines/chaos?"+query.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	return fetch(request)
}

// fetch returns the body of an answer with status 200.
func fetch(request *http.Request) ([]byte, error) {
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", answer.Status, body)
	}
	return body, err
}
