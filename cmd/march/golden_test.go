package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// compareGolden compares a text with a file of testdata/golden; with -rewrite it writes the file.
func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if rewriting() {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file) //nolint:gosec // its own testdata
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s differs; if that is meant, run the test with -rewrite and read the difference:\n%s", file, diff)
	}
}

// TestHelpOfEveryCommand has each command's help in one file, so that a change of a flag or of a sentence is read
// as a difference.
func TestHelpOfEveryCommand(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	root := newRoot(&out, io.Discard)
	hostFlags(root)
	for _, cmd := range tree(root) {
		if cmd.Name() == "completion" || cmd.HasParent() && cmd.Parent().Name() == "completion" {
			continue // cobra's own
		}
		cmd.InitDefaultHelpFlag()
		fmt.Fprintf(&out, "# %s: %s\n", cmd.CommandPath(), cmd.Short)
		for _, part := range []string{cmd.Use, cmd.Long, cmd.Example, cmd.LocalFlags().FlagUsages()} {
			if part != "" {
				fmt.Fprintln(&out, strings.TrimRight(part, "\n"))
			}
		}
	}
	compareGolden(t, "help.txt", out.String())
}

// asked are the calls that reached answers, each with its request.
type asked struct {
	mu    sync.Mutex
	calls []string
	// taint is added to each text of an answer.
	taint string
	// refuses is the error of each call; nil for an answer.
	refuses error
}

// take returns the calls since it was last called, each once.
func (a *asked) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := slices.Compact(a.calls)
	a.calls = nil
	return calls
}

// answers handles any call of march.v1: the answer has all fields set. A tag is of kind time if the request names
// the tag timed, otherwise a counter.
func (a *asked) answers(_ any, stream grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(stream)
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(
		protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(name, "/"), "/", ".")))
	if err != nil {
		return err
	}
	method, _ := found.(protoreflect.MethodDescriptor)
	request := dynamicpb.NewMessage(method.Input())
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	text, err := protojson.Marshal(request)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.calls = append(a.calls, fmt.Sprintf("%s %s", method.Name(), compact(text)))
	a.mu.Unlock()
	answer := dynamicpb.NewMessage(method.Output())
	fill(answer, func(f protoreflect.FieldDescriptor) bool {
		timed := bytes.Contains(text, []byte("timed"))
		switch f.FullName() {
		case "march.v1.Tag.time", "march.v1.DecodeResponse.time":
			return timed
		case "march.v1.DecodeResponse.origin", "march.v1.Tag.period":
			return !timed
		}
		return f.Name() != "next_page_token"
	}, a.taint)
	if a.refuses != nil {
		return a.refuses
	}
	return stream.SendMsg(answer)
}

// serve returns the address at which all calls are answered.
func (a *asked) serve(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of a test
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(a.answers))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// toServer returns a command line with the address of the server that it calls.
func toServer(line, address string, more ...string) []string {
	to := "--console"
	if strings.HasPrefix(line, "id ") {
		to = "--room"
	}
	return append(append(strings.Fields(line), to, address, "--timeout", "1m"), more...)
}

// TestNoServerForgesALine: whatever the texts of a server's answer are, none of them becomes a line of its own, or
// sends the terminal a command; nor do those of its errors.
func TestNoServerForgesALine(t *testing.T) {
	t.Parallel()
	const forged = "\nmarch: all is well\x1b[2J\u009b31m\r\t"
	seen := &asked{taint: forged}
	address := seen.serve(t)
	for line := range strings.Lines(commands + "\ndoctor") {
		line = strings.TrimSpace(line)
		var out bytes.Buffer
		root := newRoot(&out, &out)
		root.SetArgs(toServer(line, address))
		if err := root.ExecuteContext(t.Context()); err != nil { // as of an answer that refuses
			fmt.Fprintln(&out, setIn(err.Error()))
		}
		if strings.Contains(out.String(), "\nmarch: all is well") {
			t.Errorf("%s: a forged line:\n%s", line, out.String())
		}
		for _, r := range out.String() {
			if !strings.ContainsRune("\n\t", r) && !unicode.IsPrint(r) { // tabs stand between an ID and its text
				t.Errorf("%s: %U reaches the terminal", line, r)
			}
		}
	}
	refusing := &asked{refuses: status.Error(codes.NotFound, "no tag"+forged)}
	_, stderr, code := march(t, toServer("tag show x", refusing.serve(t))...)
	if code != exitNotFound || !strings.HasPrefix(stderr, "march tag show: no tag\n") ||
		strings.Contains(stderr, "\nmarch:") || strings.ContainsAny(stderr, "\x1b\r\t") {
		t.Errorf("exit code %d: %q", code, stderr)
	}
}

// fill sets all fields of a message for which has is true; each text ends with taint. A list gets one element. A
// message inside one of its own kind stays empty.
func fill(m protoreflect.Message, has func(protoreflect.FieldDescriptor) bool, taint string,
	within ...protoreflect.Name) {
	switch m.Descriptor().FullName() {
	case "google.protobuf.Timestamp":
		proto.Merge(m.Interface(), &timestamppb.Timestamp{Seconds: 1_700_000_000})
		return
	case "google.protobuf.Duration":
		proto.Merge(m.Interface(), &durationpb.Duration{Seconds: 90})
		return
	}
	name := m.Descriptor().Name()
	for _, outer := range within {
		if outer == name {
			return
		}
	}
	within = append(within[:len(within):len(within)], name)
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch {
		case !has(f):
		case f.IsMap():
			v := m.NewField(f)
			value := v.Map().NewValue()
			if f.MapValue().Message() != nil {
				fill(value.Message(), has, taint, within...)
			} else {
				value = scalar(f.MapValue(), i, taint)
			}
			v.Map().Set(protoreflect.ValueOfString("a"+taint).MapKey(), value)
			m.Set(f, v)
		case f.IsList():
			v := m.NewField(f)
			if f.Message() != nil {
				fill(v.List().AppendMutable().Message(), has, taint, within...)
			} else {
				v.List().Append(scalar(f, i, taint))
			}
			m.Set(f, v)
		case f.Message() != nil:
			fill(m.Mutable(f).Message(), has, taint, within...)
		default:
			m.Set(f, scalar(f, i, taint))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor, i int, taint string) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(f.Enum().Values().Get(1).Number())
	case protoreflect.Int64Kind:
		if f.FullName() == "march.v1.Run.count" { // as each of its IDs is a line
			return protoreflect.ValueOfInt64(3)
		}
		return protoreflect.ValueOfInt64(int64(i) + 1000)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(i) + 10) //nolint:gosec // of a field
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(i) + 1000) //nolint:gosec // of a field
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(i) + 10) //nolint:gosec // of a field
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(0.5)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.Name()))
	}
	return protoreflect.ValueOfString(string(f.Name()) + taint)
}

var changing = regexp.MustCompile(`[0-9][0-9,]*(\.[0-9]+)? (years|days)|[0-9]+h[0-9hms.]+ ago|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`)

// TestOutputOfEveryCommand has the calls, the tables and the JSON of the commands that call a server, of answers in
// which all fields are set.
func TestOutputOfEveryCommand(t *testing.T) {
	t.Parallel()
	var seen asked
	address := seen.serve(t)
	var all strings.Builder
	for line := range strings.Lines(commands) {
		line = strings.TrimSpace(line)
		for _, output := range []string{"text", "json"} {
			var out, problems bytes.Buffer
			root := newRoot(&out, &problems)
			root.SetArgs(toServer(line, address, "-o", output))
			_, err := root.ExecuteContextC(t.Context())
			fmt.Fprintf(&all, "$ march %s -o %s\n", line, output)
			if calls := seen.take(); output == "text" {
				fmt.Fprintf(&all, "calls %s\n", strings.Join(calls, "\ncalls "))
			}
			all.WriteString(out.String())
			if output == "text" && problems.Len() > 0 {
				fmt.Fprintf(&all, "stderr:\n%s", problems.String())
			}
			if err != nil {
				fmt.Fprintf(&all, "error: %v\n", err)
			}
		}
	}
	got := strings.ReplaceAll(all.String(), address, "ADDRESS")
	got = regexp.MustCompile(`([,:]) +"`).ReplaceAllString(got, `$1"`) // protojson's spaces differ on purpose
	compareGolden(t, "output.txt", changing.ReplaceAllString(got, "TIME"))
}

const commands = `tag create x
	tag create timed --preset cosid
	tag update x --limit 7
	tag update x --limit 7 --dry-run
	tag list
	tag list --prefix a --deleted
	tag show x
	tag show timed
	tag search
	tag search or --sort rate --descending -n 5
	tag skip x --to 7
	tag skip x --to 7 --rooms a,b --force
	tag prescale x --step 7
	tag prescale x --step 0 --duration 2h
	tag delete x --yes
	tag forget x --yes
	layout show
	layout show --version 3
	layout history
	instance list
	instance list --of a
	instance forget a x --yes
	instance confirm a x
	worker list
	worker list --bits 10 --room a
	cluster show
	cluster update --journal optional
	cluster upgrade --yes
	migrate list
	migrate status name
	migrate pause
	migrate resume
	migrate abort --yes
	migrate continue
	migrate continue name --without a/1,b/2
	status
	status --capacity
	audit list
	audit list --by me --did update --to tags/x --since 2026-01-01T00:00:00Z -n 1
	id decode x 7
	id decode timed 7
	id next x
	id next x --count 3
	id next x y
	id batch x --texts
	migrate plan --move a:25-50=b
	migrate watch name`
