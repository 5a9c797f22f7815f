package access_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/access/policy"
)

// message returns a request of a call for a tag in room eu-1.
func message(t *testing.T, m protoreflect.MethodDescriptor, tag string) proto.Message {
	t.Helper()
	kind := must(protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName()))(t)
	r := kind.New()
	fields := m.Input().Fields()
	text := protoreflect.ValueOfString
	if f := fields.ByName("tags"); f != nil && f.IsList() && f.Message() != nil {
		of := r.Mutable(f).List().AppendMutable().Message() // TestMany has several
		of.Set(of.Descriptor().Fields().ByName("tag"), text(tag))
		of.Set(of.Descriptor().Fields().ByName("count"), protoreflect.ValueOfInt64(1))
	}
	if f := fields.ByName("tag"); f != nil && f.Kind() == protoreflect.StringKind {
		r.Set(f, text(tag))
	} else if f != nil {
		of := r.Mutable(f).Message()
		of.Set(of.Descriptor().Fields().ByName("name"), text(tag))
	} else if f := fields.ByName("name"); f != nil {
		r.Set(f, text(tag))
	}
	if f := fields.ByName("room"); f != nil {
		r.Set(f, text("eu-1"))
	}
	return r.Interface()
}

// ask makes a call and returns its code; a call that passes the gate is Unimplemented.
func ask(ctx context.Context, t *testing.T, conn grpc.ClientConnInterface,
	m protoreflect.MethodDescriptor, tag string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	out := must(protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName()))(t)
	if !m.IsStreamingServer() {
		return conn.Invoke(ctx, name, message(t, m, tag), out.New().Interface())
	}
	if c, is := conn.(*access.Conn); is {
		return c.Stream(ctx, name, message(t, m, tag), func(any) error { return nil })
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true,
		ClientStreams: m.IsStreamingClient()}, name)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(message(t, m, tag)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_ = stream.CloseSend()
	return stream.RecvMsg(out.New().Interface())
}

// Every call of every service is refused without an identity, and passes for an admin: over
// gRPC, and in the server's own process, as HTTP and the pages call.
func TestEveryCall(t *testing.T) {
	w := newWorld(t)
	inside := w.gate.Conn(plainly)
	over := w.dial(w.serve(plainly, w.intercepted()...), nil)
	for _, m := range methods() {
		for _, c := range []struct {
			token string
			want  codes.Code
		}{{"", codes.Unauthenticated}, {"nobody", codes.PermissionDenied}, {"root", codes.Unimplemented}} {
			err := ask(bearer(w.tokens[c.token]), t, over, m, "order")
			if status.Code(err) != c.want {
				t.Errorf("%s by %q: %v, want %v", m.FullName(), c.token, err, c.want)
			}
			ctx := must(w.gate.Login(bg, access.Credentials{Token: w.tokens[c.token]}))(t)
			if err := api.ToStatus(ask(ctx, t, inside, m, "order")); status.Code(err) != c.want {
				t.Errorf("%s in this process by %q: %v, want %v", m.FullName(), c.token, err, c.want)
			}
		}
		err := ask(bearer(w.tokens["root"]), t, inside, m, "order")
		if allocator.KindOf(err) != allocator.Unauthenticated {
			t.Errorf("%s in this process by a handler that asked for no identity: %v", m.FullName(), err)
		}
	}
}

// Each role has its calls, for the tags of its pattern.
func TestRoles(t *testing.T) {
	w := newWorld(t)
	conn := w.dial(w.serve(plainly, w.intercepted()...), nil)
	for _, m := range methods() {
		rule := policy.CallOf("/" + string(m.Parent().FullName()) + "/" + string(m.Name()))
		least := strings.Join(rule.Roles, " ")
		for subject, may := range map[string]bool{
			"issuer": strings.Contains(least, "issuer"), "viewer": strings.Contains(least, "viewer"),
			"operator": strings.Contains(least, "viewer") || least == "operator", "root": true,
		} {
			want := codes.PermissionDenied
			if may {
				want = codes.Unimplemented
			}
			err := ask(bearer(w.tokens[subject]), t, conn, m, "shop-1")
			if status.Code(err) != want {
				t.Errorf("%s by %s: %v, want %v", m.FullName(), subject, err, want)
			}
			if want == codes.PermissionDenied && !strings.Contains(err.Error(), string(m.Name())) {
				t.Errorf("%s by %s: %v does not name the right", m.FullName(), subject, err)
			}
		}
		if _, tags, _ := rule.Needs(); m.IsStreamingClient() || tags == "-" {
			continue // TestStreams has the messages of streams, which nothing reads here
		}
		if err := ask(bearer(w.tokens["issuer"]), t, conn, m, "shop"); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s for a tag outside the pattern: %v", m.FullName(), err)
		}
	}
}

// The names of a request's tag are found in every request that has one.
func TestEveryTagIsFound(t *testing.T) {
	w := newWorld(t)
	w.write("policy.yaml", "grants: [{subjects: token:root, roles: admin, tags: [only], rooms: ['*']}]")
	w.reload()
	conn := w.dial(w.serve(plainly, w.intercepted()...), nil)
	for _, m := range methods() {
		_, tags, _ := policy.CallOf("/" + string(m.Parent().FullName()) + "/" + string(m.Name())).Needs()
		for tag, want := range map[string]codes.Code{"only": codes.Unimplemented, "other": codes.PermissionDenied} {
			if tags == "-" {
				want = codes.Unimplemented
			} else if tags == "all tags" {
				want = codes.PermissionDenied
			}
			if m.IsStreamingClient() {
				want = codes.Unimplemented // TestStreams has its messages, which nothing reads here
			}
			if err := ask(bearer(w.tokens["root"]), t, conn, m, tag); status.Code(err) != want {
				t.Errorf("%s for tag %s: %v, want %v", m.FullName(), tag, err, want)
			}
		}
		// A request that has a tag's name is of a call whose tag is checked.
		fields := m.Input().Fields()
		if tags == "-" && (fields.ByName("tag") != nil || fields.ByName("tags") != nil ||
			strings.Contains(string(m.Name()), "Tag")) {
			t.Errorf("%s has a tag, and its rule checks none", m.FullName())
		}
	}
}
