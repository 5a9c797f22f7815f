package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Clock is how far a server's clock is ahead of this process's, give or take Unsure.
type Clock struct{ Ahead, Unsure time.Duration }

// ReadClock asks the server that a store uses for its clock. An error says why that is not
// known. The protocol needs no clock of etcd, so this is no operation of a Store.
func ReadClock(ctx context.Context, s Store) (Clock, error) {
	c, ok := s.(interface {
		clock(ctx context.Context) (Clock, error)
	})
	if !ok {
		return Clock{}, errors.New("this store has no clock")
	}
	return c.clock(ctx)
}

// clock reads the header Date of an answer over HTTP, which the client's port has beside gRPC:
// no call of gRPC tells the time.
func (e *etcd) clock(ctx context.Context) (Clock, error) {
	m, err := e.client()
	if err != nil {
		return Clock{}, err
	}
	address, client := e.overHTTP(m.endpoint)
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/version", nil)
	if err != nil {
		return Clock{}, err
	}
	sent := time.Now()
	answer, err := client.Do(request)
	if err != nil {
		return Clock{}, fmt.Errorf("etcd does not answer over HTTP: %w", err)
	}
	took := time.Since(sent)
	_ = answer.Body.Close()
	at, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return Clock{}, fmt.Errorf("etcd's answer to GET /version (%s) has no Date", answer.Status)
	}
	// A Date has whole seconds: on average it is half a second old.
	at = at.Add(time.Second / 2)
	return Clock{Ahead: at.Sub(sent.Add(took / 2)), Unsure: time.Second + took/2}, nil
}

// overHTTP returns the URL of an endpoint, and a client for this one question. It presents the
// certificate that the store has.
func (e *etcd) overHTTP(endpoint string) (string, *http.Client) {
	secured := e.cfg.secured(endpoint)
	scheme, host, found := strings.Cut(endpoint, "://")
	if !found {
		scheme, host = "", endpoint
	}
	transport := &http.Transport{}
	if socket, isSocket := strings.CutPrefix(scheme, "unix"); isSocket {
		path := host
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		scheme, host = "http"+socket, "localhost"
	}
	if secured != nil {
		secured = secured.Clone()
		secured.NextProtos = nil // a connection of gRPC speaks HTTP/2 alone
		scheme = "https"
	} else if scheme == "https" {
		secured = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	transport.TLSClientConfig = secured
	if scheme != "https" {
		scheme = "http"
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	return (&url.URL{Scheme: scheme, Host: host}).String(), client
}
