// Package prometheus reads the history of a longer time than instances remember from a
// Prometheus that scrapes them. It knows March's own metrics, and no others.
//
// All is bounded: how long an answer may take and how large it may be, the points of a history,
// and the histories that are read at once (one). An answer is kept for a minute. Every error
// says what an operator can do about it.
package prometheus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/console/history"
)

const (
	// Within bounds the time in which a history is read.
	Within = 6 * time.Second
	// maxAnswer bounds the answer to a query, in bytes.
	maxAnswer = 8 << 20
	// maxReason bounds what is quoted of a reason that Prometheus gives, in bytes.
	maxReason = 300
	// keepFor is how long a history is kept.
	keepFor = time.Minute
	// mostKept is how many histories are kept.
	mostKept = 4
)

// Config says which Prometheus to ask.
type Config struct {
	// URL is its address, HTTP or HTTPS, with the path below which it serves /api/v1. Empty
	// for no Prometheus.
	URL string
	// TokenFile is a file with the bearer token to give; empty for none. It is read again for
	// each history, and sent over HTTPS or to this machine only.
	TokenFile string
	// CA is a file with the CA certificates (PEM) that sign its certificate; empty for the
	// system's.
	CA string
	// Cluster is the label cluster that the targets of this cluster have there; empty where it
	// watches one cluster.
	Cluster string
}

// Validate checks the settings. Its error is Invalid, and names the flags.
func (cfg Config) Validate() error {
	if cfg.URL == "" {
		for _, f := range []struct{ flag, value string }{{"prometheus-token-file", cfg.TokenFile},
			{"prometheus-ca", cfg.CA}, {"prometheus-cluster", cfg.Cluster}} {
			if f.value != "" {
				return allocator.Errorf(allocator.Invalid,
					"%s: %q, without a Prometheus; give --prometheus URL", f.flag, f.value)
			}
		}
		return nil
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.RawQuery+u.Fragment != "" || u.User != nil {
		return allocator.Errorf(allocator.Invalid,
			"prometheus: %q; allowed: an address such as http://prometheus:9090, without user, query and fragment",
			redacted(cfg.URL))
	}
	if cfg.TokenFile != "" && u.Scheme != "https" && !api.Loopback(u.Hostname()) {
		return allocator.Errorf(allocator.Invalid,
			"prometheus-token-file: given for %s, to which the token would go without TLS; allowed: https, "+
				"or an address of this machine", cfg.URL)
	}
	if cfg.TokenFile != "" { // not only with the first history
		if _, err := api.ReadToken(cfg.TokenFile); err != nil {
			return allocator.Errorf(allocator.Invalid, "prometheus-%w", err)
		}
	}
	return nil
}

// redacted returns an address without its password.
func redacted(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Redacted()
	}
	return "an address that cannot be parsed"
}

// Client asks a Prometheus. It is safe for concurrent use.
type Client struct {
	cfg  Config
	http *http.Client
	turn chan struct{}         // has an element while a history is read
	kept map[history.Span]kept // guarded by turn
}

// kept is a history that was read.
type kept struct {
	told []history.Told
	at   time.Time
}

// New returns a client; nil if cfg names no Prometheus. Its error is Invalid.
func New(cfg Config, log hclog.Logger) (*Client, error) {
	if err := cfg.Validate(); err != nil || cfg.URL == "" {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:errcheck // it is documented to be one
	transport.MaxIdleConnsPerHost, transport.IdleConnTimeout = atOnce, 30*time.Second
	if cfg.CA != "" {
		u, err := url.Parse(cfg.URL)
		if err != nil {
			return nil, err
		}
		files, err := tlsfiles.Open(tlsfiles.Config{Flags: "prometheus", CA: cfg.CA, TLS12: true, Logger: log})
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = files.Client(u.Hostname())
	}
	return &Client{
		cfg: cfg, turn: make(chan struct{}, 1), kept: make(map[history.Span]kept),
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
	}, nil
}

// Close closes the connections that are not in use.
func (c *Client) Close() {
	if c != nil {
		c.http.CloseIdleConnections()
	}
}

// series are the values of some labels.
type series struct {
	Metric struct{ Room, Tag string }
	Values []sample
}

// sample is a value at a time.
type sample struct {
	at    float64 // Unix time, in seconds
	value float64
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *sample) UnmarshalJSON(text []byte) error {
	var parts [2]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return err
	}
	var value string
	if err := errors.Join(json.Unmarshal(parts[0], &s.at), json.Unmarshal(parts[1], &value)); err != nil {
		return err
	}
	var err error
	s.value, err = strconv.ParseFloat(value, 64)
	return err
}

// answer is what Prometheus answers.
type answer struct {
	Status, ErrorType, Error string
	Data                     struct {
		ResultType string
		Result     []series
	}
}

// ask returns the answer to a query at the end of each point of a span. Its error is Unavailable.
func (c *Client) ask(ctx context.Context, query string, span history.Span) ([]series, error) {
	step := time.Duration(span.Step) * time.Minute
	first := span.First.Add(step)
	q := url.Values{
		"query": {query}, "step": {strconv.FormatInt(int64(step/time.Second), 10)}, "timeout": {Within.String()},
		"start": {strconv.FormatInt(first.Unix(), 10)},
		"end":   {strconv.FormatInt(first.Add(step*time.Duration(span.Points-1)).Unix(), 10)},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		strings.TrimRight(c.cfg.URL, "/")+"/api/v1/query_range?"+q.Encode(), nil)
	if err != nil {
		return nil, allocator.Errorf(allocator.Unavailable, "prometheus: %w", err)
	}
	if c.cfg.TokenFile != "" {
		token, err := api.ReadToken(c.cfg.TokenFile)
		if err != nil {
			return nil, allocator.Errorf(allocator.Unavailable, "prometheus-%w", err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return c.read(response, text)
}

// unreachable returns the error of a Prometheus that did not answer.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return allocator.Errorf(allocator.Unavailable,
			"prometheus: %s did not answer within %v; try again, or see there how long its queries take",
			c.cfg.URL, Within)
	}
	var address *url.Error
	if errors.As(err, &address) { // it would repeat the whole query
		err = address.Err
	}
	return allocator.Errorf(allocator.Unavailable,
		"prometheus: %s does not answer: %w; check that it runs, and that this console reaches it", c.cfg.URL, err)
}

// read reads an answer. Its error is Unavailable.
func (c *Client) read(response *http.Response, text []byte) ([]series, error) {
	if len(text) > maxAnswer {
		return nil, allocator.Errorf(allocator.Unavailable,
			"prometheus: the answer of %s has more than %d MiB; lower --metrics-tags of the rooms",
			c.cfg.URL, maxAnswer>>20)
	}
	if code := response.StatusCode; code == http.StatusUnauthorized || code == http.StatusForbidden {
		return nil, allocator.Errorf(allocator.Unavailable,
			"prometheus: %s refuses this console (%s); give it a token that may query, by --prometheus-token-file",
			c.cfg.URL, response.Status)
	}
	var a answer
	err := json.Unmarshal(text, &a)
	switch {
	case err == nil && a.Status == "error":
		reason := cmp.Or(a.Error, response.Status)
		reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
		return nil, allocator.Errorf(allocator.Unavailable,
			"prometheus: %s cannot answer (%s): %s; the last 24 hours need no Prometheus", c.cfg.URL,
			cmp.Or(a.ErrorType, "error"), reason)
	case err != nil || a.Status != "success" || a.Data.ResultType != "matrix":
		return nil, allocator.Errorf(allocator.Unavailable,
			"prometheus: %s answers, but not as a Prometheus does (%s); allowed for --prometheus: "+
				"the address below which /api/v1/query_range is", c.cfg.URL, response.Status)
	}
	return a.Data.Result, nil
}
