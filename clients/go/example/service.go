// An HTTP service whose orders have IDs of March: service PORT ROOM...
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/march-id/march/api/client"
)

func main() {
	ids, err := client.New(context.Background(), client.Options{Addresses: os.Args[2:], WarmTags: []string{"order"}})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], orders(ids)))
}

// orders answers POST /orders with the ID of a new order.
func orders(ids client.Issuer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		id, err := ids.Next(r.Context(), "order")
		switch {
		case errors.Is(err, client.Unavailable):
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"order":"%d"}`, id) // a text: JavaScript rounds above 2^53
		}
	})
	return mux
}
