package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed static
var static embed.FS

// assets are the files in static, by name.
type assets map[string]asset

type asset struct {
	content []byte
	version string // a digest in its address, so that browsers may cache it for ever
}

func newAssets() (assets, error) {
	list, err := static.ReadDir("static")
	if err != nil {
		return nil, err
	}
	a := make(assets)
	for _, entry := range list {
		name := entry.Name()
		content, err := static.ReadFile("static/" + name)
		if err != nil {
			return nil, err
		}
		if kind := path.Ext(name); !strings.Contains(name, ".min.") && (kind == ".js" || kind == ".css") {
			content = packed(content)
		}
		sum := sha256.Sum256(content)
		a[name] = asset{content, hex.EncodeToString(sum[:6])}
	}
	return a, nil
}

// packed leaves out of a script or style sheet of ours what is there for its readers alone:
// indentation, empty lines and lines of comments. No text of a script spans lines.
func packed(content []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(content) {
		if line = bytes.TrimSpace(line); len(line) > 0 && !bytes.HasPrefix(line, []byte("//")) {
			out.Write(line)
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}

// address returns where a file is served.
func (a assets) address(name string) string { return "/static/" + name + "?v=" + a[name].version }

func (a assets) serve(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	f, ok := a[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	if r.URL.Query().Get("v") == f.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = w.Write(f.content)
}

// zips are compressors for reuse: each has tables of some 800 KiB.
var zips = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// compressed compresses the answers for browsers that can read them then. No page has a secret, whose length could
// say something of it.
func compressed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept-Encoding")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		zip, _ := zips.Get().(*gzip.Writer)
		defer zips.Put(zip)
		zip.Reset(w)
		w.Header().Set("Content-Encoding", "gzip")
		next.ServeHTTP(&zipped{w, zip}, r)
		_ = zip.Close()
	})
}

// zipped is an answer that is compressed.
type zipped struct {
	http.ResponseWriter
	zip *gzip.Writer
}

func (z *zipped) Write(b []byte) (int, error) { return z.zip.Write(b) }
