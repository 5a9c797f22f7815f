package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"
	"time"
)

func TestBundleHasNoSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"dial https://root:s3cret@etcd:2379: refused": "dial https://hidden@etcd:2379: refused",
		"Authorization: Bearer abc.def":               "Authorization: Bearer hidden",
		`{"password": "s3cret", "name":"password"}`:   `{"password": "hidden", "name":"password"}`,
		"token=abc&x=1": "token=hidden&x=1",
		`"name": "tinyid-tokens", "value": "/etc/tokens"`: `"name": "tinyid-tokens", "value": "/etc/tokens"`,
		`"what": "tag secret has used 80% of its IDs"`:    `"what": "tag secret has used 80% of its IDs"`,
		"march_chain_issued_ids_total{tag=\"order\"} 5":   "march_chain_issued_ids_total{tag=\"order\"} 5",
	} {
		if got := scrub(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestBundleIsAnArchive(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var b bytes.Buffer
	if err := writeBundle(&b, "top", []bundleFile{{"a.txt", []byte("one")}, {"d/b.txt", nil}}, at); err != nil {
		t.Fatal(err)
	}
	zipped, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for archive := tar.NewReader(zipped); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = string(content)
	}
	if len(got) != 2 || got["top/a.txt"] != "one" || got["top/d/b.txt"] != "" {
		t.Errorf("got %q", got)
	}
}
