package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/room"
)

// A client of one room, and the first IDs of a tag.
func ExampleNew() {
	ctx := context.Background()
	ids, err := client.New(ctx, client.Options{
		Addresses: []string{exampleRoom()}, // instances of one room, HOST:PORT
		WarmTags:  []string{"invoice"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ids.Close()
	for range 3 {
		id, err := ids.Next(ctx, "invoice")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(id)
	}
	// Output:
	// 1
	// 2
	// 3
}

// A handle to a tag, for code that takes IDs often.
func ExampleClient_Tag() {
	ctx := context.Background()
	ids, err := client.New(ctx, client.Options{Addresses: []string{exampleRoom()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ids.Close()
	order, err := ids.Tag("order")
	if err != nil {
		fmt.Println(err)
		return
	}
	var sum int64
	for range 100 {
		id, ok := order.TryNext()
		if !ok { // the first time, and sometimes later
			if id, err = order.Next(ctx); err != nil {
				fmt.Println(err)
				return
			}
		}
		sum += id
	}
	fmt.Println(sum)
	// Output: 5050
}

// Many IDs at once come as runs of consecutive ones: room a has the residues 0
// to 499 of 1000.
func ExampleClient_NextN() {
	ctx := context.Background()
	ids, err := client.New(ctx, client.Options{Addresses: []string{exampleRoom()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ids.Close()
	runs, err := ids.NextN(ctx, "item", 700)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, run := range runs {
		fmt.Println(run.Count, "from", run.First)
	}
	// Output:
	// 499 from 1
	// 201 from 1000
}

// Runs yield their IDs.
func ExampleRuns() {
	ctx := context.Background()
	ids, err := client.New(ctx, client.Options{Addresses: []string{exampleRoom()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ids.Close()
	runs, err := ids.NextN(ctx, "line", 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	for id := range runs.IDs() {
		fmt.Println(id)
	}
	// Output:
	// 1
	// 2
	// 3
}

// A segment for another process, which issues its IDs itself, until its end.
func ExampleClient_Lease() {
	ctx := context.Background()
	ids, err := client.New(ctx, client.Options{Addresses: []string{exampleRoom()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ids.Close()
	segment, err := ids.Lease(ctx, "parcel", 700)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(segment.Count, "IDs, the last is", segment.Last(), segment.Until.After(time.Now()))
	// Output: 700 IDs, the last is 1200 true
}

// The kind of an error says what went wrong.
func ExampleClient_Next_errors() {
	ctx := context.Background()
	ids, err := client.New(ctx, client.Options{Addresses: []string{exampleRoom()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ids.Close()
	_, err = ids.Next(ctx, "No Such Tag")
	switch {
	case errors.Is(err, client.Invalid):
		fmt.Println("invalid:", err)
	case errors.Is(err, client.NotFound):
		fmt.Println("no such tag:", err)
	case errors.Is(err, client.Unavailable):
		fmt.Println("try again later:", err)
	}
	// Output: invalid: tag: "No Such Tag" begins with "N"; allowed: [a-z0-9][a-z0-9._-]{0,62}
}

// The examples' room: a real one, with a store in memory instead of an etcd.
var example struct {
	sync.Mutex
	address string
	stop    func()
}

// exampleRoom returns the address of a room that creates tags as they are asked
// for.
func exampleRoom() string {
	example.Lock()
	defer example.Unlock()
	if example.stop != nil {
		return example.address
	}
	ctx, cancel := context.WithCancel(context.Background())
	store := ledgertest.NewFake(panics{}).Open()
	l, err := ledger.New(store, ledger.DefaultConfig())
	if err != nil {
		panic(err)
	}
	layout, err := allocator.EqualLayout(1000, []allocator.Room{"a", "b"})
	if err != nil {
		panic(err)
	}
	if _, err := admin.New(l, admin.DefaultConfig()).Init(ctx, layout, "example"); err != nil {
		panic(err)
	}
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name, cfg.Ledger, cfg.CreateTags = "a", "example", l, true
	if cfg.GRPC, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		panic(err)
	}
	server, err := room.New(cfg)
	if err != nil {
		panic(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	for server.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	example.address = cfg.GRPC.Addr().String()
	example.stop = func() {
		cancel()
		if err := <-done; err != nil {
			panic(err)
		}
		_ = store.Close()
	}
	return example.address
}

// stopExampleRoom stops the examples' room if it was started.
func stopExampleRoom() {
	example.Lock()
	defer example.Unlock()
	if example.stop != nil {
		example.stop()
	}
}

// panics is the test that the store in memory reports errors to.
type panics struct{}

func (panics) Helper()                           {}
func (panics) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (panics) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
