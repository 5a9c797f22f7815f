// Package bundle makes the archive of `march debug bundle`: all that a maintainer asks for
// to find a fault, and no secrets.
//
// It has only what servers answer over their API, and nothing of the environment, of files or of
// the command that makes it. Servers hide users and passwords in their settings; secrets are in
// files, of which a setting has the path. Every text is scrubbed once more here, because an error
// of another program may repeat a URL or a header. Profiles have names of functions, and no data.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/march/internal/doctor"
	"github.com/march-id/march/cmd/march/internal/origin"
)

// File is a file of the archive.
type File struct {
	Name    string
	Content []byte
}

// Request is what each process is asked for.
func Request() *marchv1.DiagnoseRequest {
	return &marchv1.DiagnoseRequest{Profiles: true, Metrics: true}
}

// mostEntries is how many migrations and changes are taken, the newest.
const mostEntries = 1000

// Collect returns the files. program is the version of this program. Calls that
// fail are in errors.txt, because a bundle is wanted most when something is broken.
func Collect(ctx context.Context, console grpc.ClientConnInterface, program string, facts doctor.Facts,
	now time.Time) ([]File, error) {
	b := &builder{}
	b.text("about.txt", fmt.Sprintf("made by march %s at %s\n", program, now.UTC().Format(time.RFC3339)))
	b.value("doctor.json", doctor.Examine(facts))
	b.ask("overview.json", func() (proto.Message, error) { return facts.Overview, facts.OverviewErr })
	b.message("instances.json", &marchv1.ListInstancesResponse{Instances: facts.Instances})
	b.message("tags.json", &marchv1.SearchTagsResponse{Tags: facts.Tags, Total: facts.TagsTotal})
	c := marchv1.NewConsoleServiceClient(console)
	b.ask("capacity.json", func() (proto.Message, error) { return c.GetCapacity(ctx, &marchv1.GetCapacityRequest{}) })
	b.ask("layout.json", func() (proto.Message, error) { return c.GetLayout(ctx, &marchv1.GetLayoutRequest{}) })
	b.ask("cluster.json", func() (proto.Message, error) { return c.GetCluster(ctx, &marchv1.GetClusterRequest{}) })
	b.ask("workers.json", func() (proto.Message, error) {
		return c.ListWorkers(ctx, &marchv1.ListWorkersRequest{PageSize: mostEntries})
	})
	b.ask("migrations.json", func() (proto.Message, error) {
		return c.ListMigrations(ctx, &marchv1.ListMigrationsRequest{PageSize: mostEntries})
	})
	b.ask("audit.json", func() (proto.Message, error) {
		return c.ListAudit(ctx, &marchv1.ListAuditRequest{PageSize: mostEntries})
	})
	for _, a := range facts.Answers {
		b.process(a)
	}
	if len(b.failed) > 0 {
		b.text("errors.txt", strings.Join(b.failed, "\n")+"\n")
	}
	return b.files, b.err
}

// builder gathers files.
type builder struct {
	files  []File
	failed []string
	err    error // of a value that is no JSON
}

// text adds a text without its secrets.
func (b *builder) text(name, content string) {
	b.files = append(b.files, File{name, []byte(Scrub(content))})
}

func (b *builder) value(name string, value any) {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		b.err = fmt.Errorf("%s: %w", name, err)
		return
	}
	b.text(name, string(content)+"\n")
}

func (b *builder) message(name string, m proto.Message) {
	content, err := protojson.MarshalOptions{Multiline: true}.Marshal(m)
	if err != nil {
		b.err = fmt.Errorf("%s: %w", name, err)
		return
	}
	b.text(name, string(content)+"\n")
}

func (b *builder) ask(name string, call func() (proto.Message, error)) {
	answer, err := call()
	if err != nil {
		b.failed = append(b.failed, name+": "+err.Error())
		return
	}
	b.message(name, answer)
}

// process adds what a process told of itself.
func (b *builder) process(a doctor.Answer) {
	if a.Got == nil {
		b.failed = append(b.failed, a.Process+": "+a.Err.Error())
		return
	}
	dir := path.Join("processes", strings.ReplaceAll(strings.TrimPrefix(a.Process, "the "), "/", "_"))
	small := proto.CloneOf(a.Got)
	small.Metrics, small.Goroutines, small.Heap = "", nil, nil
	b.message(path.Join(dir, "process.json"), small)
	b.text(path.Join(dir, "metrics.txt"), a.Got.GetMetrics())
	b.files = append(b.files, File{path.Join(dir, "goroutines.pb.gz"), a.Got.GetGoroutines()},
		File{path.Join(dir, "heap.pb.gz"), a.Got.GetHeap()})
}

// secret is a header or a field whose value is a secret.
var secret = regexp.MustCompile(
	`(?i)((?:bearer|basic)\s+|(?:password|passwd|secret|token|api[_-]?key|authorization)["']?\s*[=:]\s*(?:(?:bearer|basic)\s+)?["']?)[^\s"',;&]+`)

// Scrub returns a text without users, passwords and tokens.
func Scrub(text string) string {
	return secret.ReplaceAllString(origin.WithoutSecrets(text), "${1}hidden")
}

// Write writes the archive: a directory of that name with the files.
func Write(to io.Writer, name string, files []File, at time.Time) error {
	zipped := gzip.NewWriter(to)
	archive := tar.NewWriter(zipped)
	for _, f := range files {
		header := &tar.Header{Name: path.Join(name, f.Name), Mode: 0o600, Size: int64(len(f.Content)), ModTime: at}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.Content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zipped.Close()
}
