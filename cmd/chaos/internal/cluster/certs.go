package cluster

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/march-id/march/api"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
	"github.com/march-id/march/internal/certs"
)

// Certificates live so long, and are renewed so often: each process must take its new one while it runs.
const certificateLife, renewEvery = 5 * time.Minute, 30 * time.Second

// caller names the certificate of all callers and operators.
const caller = "caller"

func (c *Cluster) certs() string { return filepath.Join(c.Dir, "certs") }

// CA is the file with the CA of all certificates.
func (c *Cluster) CA() string { return filepath.Join(c.certs(), "ca.pem") }

// Credentials are those of callers and operators.
func (c *Cluster) Credentials() api.Credentials { return api.Credentials{TLS: c.TLS} }

// certify writes the first certificates, and renews them until Close.
func (c *Cluster) certify() (err error) {
	if err := os.MkdirAll(c.certs(), 0o750); err != nil {
		return err
	}
	authority, err := certs.New("chaos", 48*time.Hour)
	if err != nil {
		return err
	}
	if _, err := authority.WriteCA(c.certs(), "ca"); err != nil {
		return err
	}
	renew := func() error {
		names := map[string][]string{caller: {"callers.march"}} // each is a subject for the policy
		for _, s := range c.Servers() {
			names[s.Name] = []string{"127.0.0.1", s.ID + "." + string(s.Room) + ".march"}
			if s.Room == "" {
				names[s.Name][1] = s.ID + ".console.march"
			}
		}
		for name, hosts := range names {
			if _, err := authority.Write(c.certs(), name, certs.Leaf{Name: name, Hosts: hosts,
				Until: time.Now().Add(certificateLife)}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := renew(); err != nil {
		return err
	}
	if c.TLS, err = tlsfiles.Open(tlsfiles.Config{CA: c.CA(), Cert: filepath.Join(c.certs(), caller+".pem"),
		Key: filepath.Join(c.certs(), caller+"-key.pem")}); err != nil {
		return err
	}
	var ctx context.Context
	ctx, c.stopRenewing = context.WithCancel(context.Background())
	c.renewing.Go(func() {
		ticker := time.NewTicker(renewEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := renew(); err != nil {
				c.Events.Add(runlog.Event{What: runlog.Process, Target: "certificates", Violation: err.Error()})
			}
		}
	})
	return nil
}
