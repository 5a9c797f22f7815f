// Counts with go-redis over one connection, for .ci/doors/record.
package main

import (
	"context"
	"log"
	"os"

	"github.com/redis/go-redis/v9"
)

func main() {
	options, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	options.PoolSize, options.ClientName = 1, "app"
	ctx, client := context.Background(), redis.NewClient(options)
	client.Incr(ctx, "order")
	client.IncrBy(ctx, "order", 10)
	for _, send := range []func(context.Context, func(redis.Pipeliner) error) ([]redis.Cmder, error){client.Pipelined,
		client.TxPipelined} {
		if _, err := send(ctx, func(p redis.Pipeliner) error {
			p.Incr(ctx, "order")
			p.Incr(ctx, "order")
			return nil
		}); err != nil {
			log.Fatal(err)
		}
	}
	client.Get(ctx, "missing")
	if err := client.Close(); err != nil {
		log.Fatal(err)
	}
}
