package web_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func TestLook(t *testing.T) {
	dir := os.Getenv("LOOK")
	b := startBrowser(t)
	shot := func(p *tab, name string) {
		os.WriteFile(dir+"/"+name+".png", p.picture(), 0o644)
	}
	rooms := []allocator.Room{"eu-1", "us-1", "ap-1"}
	w := newWorld(t, 1000, rooms...)
	url, _ := w.console("")
	w.tag("order", "invoice", "user", strings.Repeat("a-very-long-name-", 3)+"of-63-bytes")
	for i := range 60 {
		w.tag(fmt.Sprintf("shard.%03d", i))
	}
	for i, r := range rooms {
		ids, _ := w.server(r, "host-1")
		w.load(ids, "order", int64(500*(i+1)))
		w.load(ids, "invoice", 7)
		if i == 0 {
			w.server(r, "host-2")
		}
	}
	_ = marchv1.Tag{}
	p := b.open(t, url)
	p.visit("/")
	p.until("rates", `document.querySelectorAll(".spark polyline").length >= 3 && document.querySelector(".spark polyline").getAttribute("points").split(" ").length > 8`)
	shot(p, "overview")
	p.visit("/tags?sort=rate&order=down")
	p.says("order")
	shot(p, "tags")
	p.visit("/tags/order")
	shot(p, "tag")
	p.visit("/tags/order?do=skip&to=50000000&room=eu-1&room=us-1")
	shot(p, "tag-skip")
	p.visit("/migrations")
	shot(p, "migrations")
	p.visit("/migrations?boundary=1000&room=eu-1&lower=0&upper=200&room=us-1&lower=200&upper=666&room=ap-1&lower=666&upper=1000")
	shot(p, "plan")
	p.visit("/migrations?boundary=1000&room=eu-1&lower=0&upper=400&room=us-1&lower=333&upper=666&room=ap-1&lower=666&upper=1200")
	shot(p, "plan-broken")
	p.visit("/instances")
	shot(p, "instances")
	p.visit("/decode?tag=order&id=1500")
	shot(p, "decode")
	p.visit("/audit")
	shot(p, "audit")
	p.dark(true)
	p.visit("/")
	shot(p, "overview-dark")
	p.visit("/migrations?boundary=1000&room=eu-1&lower=0&upper=200&room=us-1&lower=200&upper=666&room=ap-1&lower=666&upper=1000")
	shot(p, "plan-dark")
	p.size(360, 740)
	for _, path := range []string{"", "tags", "tags/order", "migrations", "instances", "decode?tag=order&id=1500", "audit"} {
		p.visit("/" + path)
		shot(p, "narrow-"+strings.NewReplacer("/", "-", "?", "-", "&", "-").Replace(path))
	}
}
