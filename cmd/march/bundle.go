package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/words"
)

// The archive of `march debug bundle` has all that a maintainer asks for to find a fault, and no secrets.
// It has only what servers answer over their API, and nothing of the environment, of files or of
// the command that makes it. Servers hide users and passwords in their settings; secrets are in
// files, of which a setting has the path. Every text is scrubbed once more here, because an error
// of another program may repeat a URL or a header. Profiles have names of functions, and no data.

type bundleFile struct {
	Name    string
	Content []byte
}

// mostOfBundle is how many migrations and changes are taken, the newest.
const mostOfBundle = 1000

// bundleFiles returns the files. program is the version of this program. Calls that
// fail are in errors.txt, because a bundle is wanted most when something is broken.
func bundleFiles(ctx context.Context, console grpc.ClientConnInterface, program string, facts doctorFacts,
	now time.Time) ([]bundleFile, error) {
	b := &bundler{}
	b.text("about.txt", fmt.Sprintf("made by march %s at %s\n", program, now.UTC().Format(time.RFC3339)))
	b.value("doctor.json", examine(facts))
	b.ask("overview.json", func() (proto.Message, error) { return facts.Overview, facts.OverviewErr })
	b.message("instances.json", &marchv1.ListInstancesResponse{Instances: facts.Instances})
	b.message("tags.json", &marchv1.SearchTagsResponse{Tags: facts.Tags, Total: facts.TagsTotal})
	c := marchv1.NewConsoleServiceClient(console)
	b.ask("capacity.json", func() (proto.Message, error) { return c.GetCapacity(ctx, &marchv1.GetCapacityRequest{}) })
	b.ask("layout.json", func() (proto.Message, error) { return c.GetLayout(ctx, &marchv1.GetLayoutRequest{}) })
	b.ask("cluster.json", func() (proto.Message, error) { return c.GetCluster(ctx, &marchv1.GetClusterRequest{}) })
	b.ask("workers.json", func() (proto.Message, error) {
		return c.ListWorkers(ctx, &marchv1.ListWorkersRequest{PageSize: mostOfBundle})
	})
	b.ask("migrations.json", func() (proto.Message, error) {
		return c.ListMigrations(ctx, &marchv1.ListMigrationsRequest{PageSize: mostOfBundle})
	})
	b.ask("audit.json", func() (proto.Message, error) {
		return c.ListAudit(ctx, &marchv1.ListAuditRequest{PageSize: mostOfBundle})
	})
	for _, a := range facts.Answers {
		b.process(a)
	}
	if len(b.failed) > 0 {
		b.text("errors.txt", strings.Join(b.failed, "\n")+"\n")
	}
	return b.files, b.err
}

// bundler gathers files.
type bundler struct {
	files  []bundleFile
	failed []string
	err    error // of a value that is no JSON
}

// text adds a text without its secrets.
func (b *bundler) text(name, content string) {
	b.files = append(b.files, bundleFile{name, []byte(scrub(content))})
}

func (b *bundler) value(name string, value any) {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		b.err = fmt.Errorf("%s: %w", name, err)
		return
	}
	b.text(name, string(content)+"\n")
}

func (b *bundler) message(name string, m proto.Message) {
	content, err := protojson.MarshalOptions{Multiline: true}.Marshal(m)
	if err != nil {
		b.err = fmt.Errorf("%s: %w", name, err)
		return
	}
	b.text(name, string(content)+"\n")
}

func (b *bundler) ask(name string, call func() (proto.Message, error)) {
	answer, err := call()
	if err != nil {
		b.failed = append(b.failed, name+": "+err.Error())
		return
	}
	b.message(name, answer)
}

// process adds what a process told of itself.
func (b *bundler) process(a processAnswer) {
	if a.Got == nil {
		b.failed = append(b.failed, a.Process+": "+a.Err.Error())
		return
	}
	dir := path.Join("processes", strings.ReplaceAll(strings.TrimPrefix(a.Process, "the "), "/", "_"))
	small := proto.CloneOf(a.Got)
	small.Metrics, small.Goroutines, small.Heap = "", nil, nil
	b.message(path.Join(dir, "process.json"), small)
	b.text(path.Join(dir, "metrics.txt"), a.Got.GetMetrics())
	b.files = append(b.files, bundleFile{path.Join(dir, "goroutines.pb.gz"), a.Got.GetGoroutines()},
		bundleFile{path.Join(dir, "heap.pb.gz"), a.Got.GetHeap()})
}

// secretIn is a header or a field whose value is a secret.
var secretIn = regexp.MustCompile(
	`(?i)((?:bearer|basic)\s+|(?:password|passwd|secret|token|api[_-]?key|authorization)["']?\s*[=:]\s*(?:(?:bearer|basic)\s+)?["']?)[^\s"',;&]+`)

// scrub returns a text without users, passwords and tokens.
func scrub(text string) string {
	return secretIn.ReplaceAllString(words.WithoutSecrets(text), "${1}hidden")
}

// writeBundle writes the archive: a directory of that name with the files.
func writeBundle(to io.Writer, name string, files []bundleFile, at time.Time) error {
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

func newDebug(c *common) *cobra.Command {
	return group("debug", "Collect what a maintainer needs to find a fault", newDebugBundle(c))
}

func newDebugBundle(c *common) *cobra.Command {
	t := c.target()
	var out string
	cmd := command(callRow{
		use: "bundle", short: "Write an archive for a maintainer, without secrets",
		long: `Write an archive for a maintainer: what march doctor finds, the layout, the
instances, the fullest tags, the workers, the latest 1000 migrations and changes;
and of each process its settings with their origins, metrics, goroutines and heap.

It has no IDs and no secrets: nothing of the environment, and of files their
paths only; users, passwords and tokens in texts are hidden. It does have the
names of tags, hosts and operators: look into it before you send it.`,
		example: `  march debug bundle --out march-debug.tar.gz`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error {
		facts, err := collect(cmd.Context(), t, &marchv1.DiagnoseRequest{Profiles: true, Metrics: true})
		if err != nil {
			return err
		}
		now := time.Now()
		name := "march-debug-" + now.UTC().Format("20060102T150405Z")
		if out == "" {
			out = name + ".tar.gz"
		}
		var files []bundleFile
		err = t.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			files, err = bundleFiles(ctx, conn, versionText(), facts, now)
			return err
		})
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := writeBundle(&b, name, files, now); err != nil {
			return err
		}
		if err := os.WriteFile(out, b.Bytes(), 0o600); err != nil {
			return invalidf("out: %w", err)
		}
		_, err = fmt.Fprintf(c.stdout, "%s: %s, %d bytes\n", out, words.Counted(len(files), "file"), b.Len())
		return err
	})
	t.flags(cmd, "console", defaultConsole)
	cmd.Flags().StringVar(&out, "out", "", "the archive's file (default march-debug-TIME.tar.gz)")
	return cmd
}
