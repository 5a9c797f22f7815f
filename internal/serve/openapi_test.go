package serve_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/hashicorp/go-hclog"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
)

// unimplemented is both servers' routes, with services that only say which of
// their methods was called.
func unimplemented(t *testing.T) map[string]*http.ServeMux {
	t.Helper()
	ids := marchv1.UnimplementedIDServiceServer{}
	conn := inProcess(ids, marchv1.UnimplementedRoomServiceServer{}, marchv1.UnimplementedConsoleServiceServer{})
	room := must(serve.RoomRoutes(marchv1.NewIDServiceClient(conn), (*access.Gate)(nil).IDs(ids),
		marchv1.NewRoomServiceClient(conn), maxBody, hclog.NewNullLogger()))(t)
	console := must(serve.ConsoleRoutes(conn, maxBody, hclog.NewNullLogger()))(t)
	muxes := map[string]*http.ServeMux{"room": http.NewServeMux(), "console": http.NewServeMux()}
	room(muxes["room"])
	console(muxes["console"])
	return muxes
}

// document reads what a server answers, and checks it by the rules of OpenAPI 3.
func document(t *testing.T, mux *http.ServeMux) *openapi3.T {
	t.Helper()
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/openapi.json", nil))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	doc := must(openapi3.NewLoader().LoadFromData(w.Body.Bytes()))(t)
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestOpenAPI checks each document, and each of its routes against the server: it leads
// to the call that it names.
func TestOpenAPI(t *testing.T) {
	for name, mux := range unimplemented(t) {
		t.Run(name, func(t *testing.T) {
			doc := document(t, mux)
			if !doc.IsOpenAPI30() || doc.Info.Version != "v1" {
				t.Errorf("it says %q, %v", doc.OpenAPI, doc.Info)
			}
			operations := 0
			for path, item := range doc.Paths.Map() {
				for method, op := range item.Operations() {
					operations++
					checkOperation(t, path, method, op)
					checkRoute(t, mux, path, method, op)
				}
			}
			if operations < 8 {
				t.Errorf("only %d operations", operations)
			}
			for _, schema := range doc.Components.Schemas {
				checkNumbers(t, schema)
			}
		})
	}
}

func checkOperation(t *testing.T, path, method string, op *openapi3.Operation) {
	t.Helper()
	if op.RequestBody != nil {
		checkNumbers(t, op.RequestBody.Value.Content["application/json"].Schema)
		if method == http.MethodGet {
			t.Errorf("%s %s: it has a body", method, path)
		}
	}
	for _, p := range op.Parameters {
		checkNumbers(t, p.Value.Schema)
	}
	kind := "application/json"
	if strings.HasSuffix(path, ":watch") {
		kind = "application/x-ndjson"
	}
	if ok := op.Responses.Status(http.StatusOK); ok == nil || ok.Value.Content[kind] == nil {
		t.Errorf("%s %s: no answer of type %s", method, path, kind)
	}
	for _, code := range []string{"400", "429", "503", "default"} {
		response := op.Responses.Value(code)
		if response == nil || response.Value.Content["application/json"].Schema.Ref != "#/components/schemas/Error" {
			t.Errorf("%s %s: response %s is not an error", method, path, code)
		}
	}
}

// checkNumbers checks that an integer of 64 bits is a string, wherever it is in a schema.
func checkNumbers(t *testing.T, schema *openapi3.SchemaRef) {
	t.Helper()
	if schema == nil || schema.Ref != "" {
		return
	}
	s := schema.Value
	if s.Type.Is("integer") && s.Format != "int32" || s.Format == "int64" && !s.Type.Is("string") {
		t.Errorf("%s: %v, format %s", s.Description, s.Type, s.Format)
	}
	for _, property := range s.Properties {
		checkNumbers(t, property)
	}
	for _, part := range s.AllOf {
		checkNumbers(t, part)
	}
	checkNumbers(t, s.Items)
	checkNumbers(t, s.AdditionalProperties.Schema)
}

// recorder has the deadlines that a connection has.
type recorder struct{ *httptest.ResponseRecorder }

func (recorder) SetReadDeadline(time.Time) error  { return nil }
func (recorder) SetWriteDeadline(time.Time) error { return nil }

func checkRoute(t *testing.T, mux *http.ServeMux, path, method string, op *openapi3.Operation) {
	t.Helper()
	target, body := path, ""
	if op.RequestBody != nil {
		body = "{}"
	}
	for _, parameter := range op.Parameters {
		p := parameter.Value
		value := "a"
		switch {
		case p.Schema.Value.Format == "date-time":
			value = "2026-01-01T00:00:00Z"
		case p.Schema.Value.Format != "":
			value = "5"
		case p.Name == "window.age": // a duration, which the document calls a string
			value = "5s"
		}
		switch p.In {
		case "path":
			target = strings.ReplaceAll(target, "{"+p.Name+"}", value)
		case "query":
			allowed := ""
			if p.Schema.Value.Type.Is("boolean") {
				value, allowed = "true", "true or false"
			} else if enum := p.Schema.Value.Enum; len(enum) > 1 {
				value, allowed = fmt.Sprint(enum[1]), fmt.Sprintf("%v, %v", enum[0], enum[1])
			}
			if allowed != "" {
				w := httptest.NewRecorder()
				mux.ServeHTTP(w, httptest.NewRequest(method, path+"?"+p.Name+"=1", nil))
				if want := p.Name + `: \"1\"; allowed: ` + allowed; w.Code != 400 ||
					!strings.Contains(w.Body.String(), want) {
					t.Errorf("%s %s?%s=1: got %d %s, want %s", method, path, p.Name, w.Code, w.Body, want)
				}
			}
			target += map[bool]string{false: "?", true: "&"}[strings.Contains(target, "?")] + p.Name + "=" + value
		}
	}
	service, call, _ := strings.Cut(strings.TrimRight(op.OperationID, "0123456789"), "_")
	if call == "Next" {
		call, body = "NextBatch", `{"count":5}`
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(recorder{w}, httptest.NewRequest(method, target, strings.NewReader(body)))
	if want := fmt.Sprintf("method %s not implemented", call); w.Code != http.StatusNotImplemented ||
		!strings.Contains(w.Body.String(), want) {
		t.Errorf("%s %s: got %d %s, want %s of %s", method, target, w.Code, w.Body, want, service)
	}
	w = httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodTrace, target, nil))
	if allow := strings.Split(w.Header().Get("Allow"), ", "); w.Code != 405 || !slices.Contains(allow, method) {
		t.Errorf("TRACE %s: got %d, Allow %v", target, w.Code, allow)
	}
}

// TestIssuingIsNoGET: in both documents only reads are GETs.
func TestIssuingIsNoGET(t *testing.T) {
	reads := regexp.MustCompile(`_(Get|List|Search|Watch|Parse|Decode)`)
	for name, mux := range unimplemented(t) {
		for path, item := range document(t, mux).Paths.Map() {
			for method, op := range item.Operations() {
				if (method == http.MethodGet) != reads.MatchString(op.OperationID) {
					t.Errorf("%s: %s %s is %s", name, method, path, op.OperationID)
				}
			}
		}
	}
}
