package rest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/rest"
)

// document is what of OpenAPI 2.0 the documents use.
type document struct {
	Swagger     string
	Info        struct{ Title, Version string }
	Paths       map[string]map[string]operation
	Definitions map[string]json.RawMessage
}

type operation struct {
	OperationID string
	Parameters  []struct {
		Name, In, Type, Format string
		Required               bool
		Schema                 json.RawMessage
	}
	Responses map[string]struct {
		Description string
		Schema      json.RawMessage
	}
}

// unimplemented is both servers' routes, with services that only say which of
// their methods was called.
func unimplemented(t *testing.T) map[string]*http.ServeMux {
	t.Helper()
	cfg := rest.Config{MaxBody: maxBody, Logger: hclog.NewNullLogger()}
	room, err := rest.Room(marchv1.UnimplementedIDServiceServer{}, marchv1.UnimplementedRoomServiceServer{}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	console, err := rest.Console(marchv1.UnimplementedConsoleServiceServer{}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	muxes := map[string]*http.ServeMux{"room": http.NewServeMux(), "console": http.NewServeMux()}
	room(muxes["room"])
	console(muxes["console"])
	return muxes
}

var pathParameter = regexp.MustCompile(`\{([^}]*)\}`)

// TestOpenAPI checks each document against the rules of OpenAPI 2.0, and each of
// its routes against the server: it leads to the call that it names.
func TestOpenAPI(t *testing.T) {
	for name, mux := range unimplemented(t) {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/openapi.json", nil))
			var doc document
			if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
				t.Fatalf("%d %v %v", w.Code, w.Header(), err)
			}
			if doc.Swagger != "2.0" || doc.Info.Title == "" || doc.Info.Version != "v1" {
				t.Errorf("it says %q, %v", doc.Swagger, doc.Info)
			}
			for _, ref := range regexp.MustCompile(`"\$ref":"([^"]*)"`).FindAllStringSubmatch(w.Body.String(), -1) {
				if _, ok := doc.Definitions[strings.TrimPrefix(ref[1], "#/definitions/")]; !ok {
					t.Errorf("%s leads nowhere", ref[1])
				}
			}
			shapes, ids := map[string]bool{}, map[string]bool{}
			for path, methods := range doc.Paths {
				shape := pathParameter.ReplaceAllString(path, "{}")
				if shapes[shape] {
					t.Errorf("%s is there twice, but for the names of its parameters", path)
				}
				shapes[shape] = true
				for method, op := range methods {
					if op.OperationID == "" || ids[op.OperationID] {
						t.Errorf("%s %s: operationId %q", method, path, op.OperationID)
					}
					ids[op.OperationID] = true
					checkOperation(t, path, method, op)
					checkRoute(t, mux, path, method, op)
				}
			}
			if len(ids) < 8 {
				t.Errorf("only %d operations", len(ids))
			}
		})
	}
}

func checkOperation(t *testing.T, path, method string, op operation) {
	t.Helper()
	var inPath, named []string
	for _, m := range pathParameter.FindAllStringSubmatch(path, -1) {
		inPath = append(inPath, m[1])
	}
	bodies := 0
	for _, p := range op.Parameters {
		switch {
		case p.In == "path":
			named = append(named, p.Name)
			if !p.Required || p.Type == "" {
				t.Errorf("%s %s: path parameter %+v", method, path, p)
			}
		case p.In == "body" && p.Schema != nil:
			bodies++
		case p.In != "query" || p.Type == "":
			t.Errorf("%s %s: parameter %+v", method, path, p)
		}
	}
	slices.Sort(inPath)
	slices.Sort(named)
	if !slices.Equal(inPath, named) || bodies > 1 || bodies > 0 && method == "get" {
		t.Errorf("%s %s: parameters %v, %d bodies", method, path, named, bodies)
	}
	for _, response := range []string{"200", "default"} {
		if r := op.Responses[response]; r.Description == "" || r.Schema == nil {
			t.Errorf("%s %s: response %s: %v", method, path, response, r)
		}
	}
	if got := string(op.Responses["default"].Schema); got != `{"$ref":"#/definitions/Error"}` {
		t.Errorf("%s %s: errors are %s", method, path, got)
	}
}

// recorder has the deadlines that a connection has.
type recorder struct{ *httptest.ResponseRecorder }

func (recorder) SetReadDeadline(time.Time) error  { return nil }
func (recorder) SetWriteDeadline(time.Time) error { return nil }

func checkRoute(t *testing.T, mux *http.ServeMux, path, method string, op operation) {
	t.Helper()
	target, body := path, ""
	for _, p := range op.Parameters {
		value := "a"
		if p.Format != "" {
			value = "5"
		}
		switch p.In {
		case "path":
			target = strings.ReplaceAll(target, "{"+p.Name+"}", value)
		case "query":
			if p.Type == "boolean" {
				value = "true"
				w := httptest.NewRecorder()
				mux.ServeHTTP(w, httptest.NewRequest(strings.ToUpper(method), path+"?"+p.Name+"=1", nil))
				if want := p.Name + `: \"1\"; allowed: true or false`; w.Code != 400 || !strings.Contains(w.Body.String(), want) {
					t.Errorf("%s %s?%s=1: got %d %s, want %s", method, path, p.Name, w.Code, w.Body, want)
				}
			}
			target += map[bool]string{false: "?", true: "&"}[strings.Contains(target, "?")] + p.Name + "=" + value
		case "body":
			body = "{}"
		}
	}
	service, call, _ := strings.Cut(strings.TrimRight(op.OperationID, "0123456789"), "_")
	if call == "Next" { // with a count
		call = "NextBatch"
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(recorder{w}, httptest.NewRequest(strings.ToUpper(method), target, strings.NewReader(body)))
	if want := fmt.Sprintf("method %s not implemented", call); w.Code != http.StatusNotImplemented || !strings.Contains(w.Body.String(), want) {
		t.Errorf("%s %s: got %d %s, want %s of %s", method, target, w.Code, w.Body, want, service)
	}
	w = httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodTrace, target, nil))
	if allow := strings.Split(w.Header().Get("Allow"), ", "); w.Code != 405 || !slices.Contains(allow, strings.ToUpper(method)) {
		t.Errorf("TRACE %s: got %d, Allow %v", target, w.Code, allow)
	}
}

// TestIssuingIsNoGET: in both documents only reads are GETs.
func TestIssuingIsNoGET(t *testing.T) {
	reads := regexp.MustCompile(`_(Get|List|Search|Watch|Decode)`)
	for name, mux := range unimplemented(t) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/openapi.json", nil))
		var doc document
		if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		for path, methods := range doc.Paths {
			for method, op := range methods {
				if (method == "get") != reads.MatchString(op.OperationID) {
					t.Errorf("%s: %s %s is %s", name, method, path, op.OperationID)
				}
			}
		}
	}
}
