// An HTTP service whose orders have IDs of March: service PORT ROOM...
package main

import (
	"context"
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

func orders(ids client.Issuer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if id, err := ids.Next(r.Context(), "order"); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		} else {
			fmt.Fprintf(w, `{"order":"%d"}`, id) // a text: JavaScript rounds above 2^53
		}
	}
}
