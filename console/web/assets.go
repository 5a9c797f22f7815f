package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var static embed.FS

// assets are the files in static, by name.
type assets struct{ files map[string]asset }

type asset struct {
	kind          string // its media type
	plain, zipped []byte
	version       string // a digest in its address, so that browsers may cache it for ever
}

func newAssets() (*assets, error) {
	a := &assets{files: make(map[string]asset)}
	list, err := fs.ReadDir(static, "static")
	if err != nil {
		return nil, err
	}
	for _, entry := range list {
		content, err := static.ReadFile("static/" + entry.Name())
		if err != nil {
			return nil, err
		}
		if name := entry.Name(); !strings.Contains(name, ".min.") && (strings.HasSuffix(name, ".js") ||
			strings.HasSuffix(name, ".css")) {
			content = packed(content)
		}
		var zipped bytes.Buffer
		zip, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
		if err != nil {
			return nil, err
		}
		if _, err := zip.Write(content); err != nil {
			return nil, err
		}
		if err := zip.Close(); err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		a.files[entry.Name()] = asset{
			kind: mime.TypeByExtension(path.Ext(entry.Name())), plain: content, zipped: zipped.Bytes(),
			version: hex.EncodeToString(sum[:6]),
		}
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
func (a *assets) address(name string) string {
	return "/static/" + name + "?v=" + a.files[name].version
}

func (a *assets) serve(w http.ResponseWriter, r *http.Request) {
	f, ok := a.files[r.PathValue("file")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	head := w.Header()
	head.Set("Content-Type", f.kind)
	head.Set("Vary", "Accept-Encoding")
	if r.URL.Query().Get("v") == f.version {
		head.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		head.Set("Content-Encoding", "gzip")
		_, _ = w.Write(f.zipped)
		return
	}
	_, _ = w.Write(f.plain)
}
