package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/room"
)

// accessPolicy has a quota that no run reaches, so that the room counts calls for it.
const accessPolicy = `grants:
  - {subjects: ["token:other"], roles: viewer}
  - {subjects: ["token:bench"], roles: issuer, tags: ["a*", "b*", "bench*", "*"],
     quotas: {ids_per_second: 1000000000, tags: 10}}
`

// manyGrants is a policy in which the last of 21 grants allows the call, with every quota.
func manyGrants() string {
	var b strings.Builder
	b.WriteString("grants:\n")
	for k := range 20 {
		fmt.Fprintf(&b, "  - {subjects: '*', roles: issuer, tags: [a-%d-*, b-%d-*]}\n", k, k)
	}
	b.WriteString("  - {subjects: '*', roles: issuer, tags: [order-*], quotas: {ids_per_second: 1000000000, " +
		"tag_ids_per_second: 1000000000, tags: 10, ids_per_lease: 10}}\n")
	return b.String()
}

// rightRows measures the check of a right.
func rightRows(_ context.Context, b *bench) error {
	p, err := policy.Parse("policy", []byte(manyGrants()))
	if err != nil {
		return err
	}
	caller := p.Rights(&policy.Usages{}, "token:bench")
	r := policy.Request{Call: policy.CallOf(marchv1.IDService_Next_FullMethodName),
		Tag: "order-eu", Room: "eu-1", IDs: 1}
	took := b.add(row{what: "check of a right: 21 grants, 4 quotas", unit: "ns", goal: 500, atMost: true})
	allocated := b.add(row{what: "allocations of such a check", atMost: true})
	for range b.rounds {
		n, began := 0, time.Now()
		for ; n%1000 != 0 || time.Since(began) < b.unit; n++ {
			if err := caller.Check(time.Now(), r); err != nil {
				return err
			}
		}
		took.measured = append(took.measured, float64(time.Since(began).Nanoseconds())/float64(n))
		allocated.measured = append(allocated.measured, testing.AllocsPerRun(1000, func() {
			_ = caller.Check(time.Now(), r)
		}))
	}
	return nil
}

// accessRows compares a room with a policy and callers with tokens to a room without.
func accessRows(ctx context.Context, b *bench) (err error) {
	dir, err := os.MkdirTemp("", "march-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	token, line, err := access.NewToken("bench", time.Time{})
	if err != nil {
		return err
	}
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		err = errors.Join(err, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	cfg := access.Config{Policy: write("policy.yaml", accessPolicy), Tokens: write("tokens", line), Room: "a"}
	tokenFile := write("token", token)
	if err != nil {
		return err
	}
	gate, err := access.New(cfg)
	if err != nil {
		return err
	}
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	open, err := c.serve(ctx, "open", true, tag)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, open.stop()) }()
	guarded, err := c.serveWith(ctx, "guarded", true, func(cfg *room.Config) { cfg.Access = gate }, tag)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, guarded.stop()) }()
	conn, err := grpc.NewClient(guarded.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(api.TokenFile(tokenFile)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	http := b.add(row{what: "HTTP next with a token and a policy vs without", unit: "/s", goal: 0.9})
	header := b.add(row{what: "HTTP next with a header as long, which is ignored, vs without", unit: "/s"})
	unary := b.add(row{what: "gRPC Next with a token and a policy vs without", unit: "/s"})
	stream := b.add(row{what: "Stream with a token and a policy vs without", unit: "/s"})
	path := "/v1/tags/" + tag + "/next"
	bearer := "Authorization: Bearer " + token + "\r\n"
	for range b.rounds {
		ignored := &posts{method: "POST", address: open.roomHTTP, path: path, header: bearer}
		r, err := measure(ctx, load.Config{Duration: 2 * b.unit, New: ignored.caller})
		ignored.close()
		if err != nil {
			return err
		}
		header.measured = append(header.measured, r.CallsPerSecond())
		for _, m := range []struct {
			posts  *posts
			conns  []*grpc.ClientConn
			http   *[]float64
			unary  *[]float64
			stream *[]float64
		}{
			{&posts{method: "POST", address: open.roomHTTP, path: path}, open.room[:1], &http.yard,
				&unary.yard, &stream.yard},
			{&posts{method: "POST", address: guarded.roomHTTP, path: path, header: bearer}, []*grpc.ClientConn{conn},
				&http.measured, &unary.measured, &stream.measured},
		} {
			r, err := measure(ctx, load.Config{Duration: 2 * b.unit, New: m.posts.caller})
			m.posts.close()
			if err != nil {
				return err
			}
			*m.http = append(*m.http, r.CallsPerSecond())
			if r, err = measure(ctx, load.Config{Duration: 2 * b.unit, New: load.Unary(m.conns, tag)}); err != nil {
				return err
			}
			*m.unary = append(*m.unary, r.CallsPerSecond())
			if r, err = measure(ctx, load.Config{Duration: 2 * b.unit,
				NewStream: load.Streams(m.conns, tag)}); err != nil {
				return err
			}
			*m.stream = append(*m.stream, r.IDsPerSecond())
		}
		header.yard = http.yard
	}
	return nil
}
