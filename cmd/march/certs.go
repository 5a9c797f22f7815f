package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/serve"
)

// certified is the file of `march certs`: what a cluster has. The texts are host names and addresses.
type certified struct {
	Cluster   string                         `yaml:"cluster"`
	Domain    string                         `yaml:"domain"`
	Etcd      map[string][]string            `yaml:"etcd"`
	Rooms     map[string]map[string][]string `yaml:"rooms"`
	Consoles  map[string][]string            `yaml:"consoles"`
	Operators []string                       `yaml:"operators"`
	Services  []string                       `yaml:"services"`
}

// wanted is a certificate that a cluster needs: NAME.pem in a folder, of one of its CAs.
type wanted struct {
	ca, dir, name string
	leaf          certs.Leaf
}

// The CAs of a cluster. etcd's are apart: etcd takes the name of each certificate of its CA for a user, and a host
// with a certificate of the peers' CA can join etcd as a member.
const (
	marchCA = "ca"
	etcdCA  = "etcd-ca"
	peersCA = "etcd-peers-ca"
)

// made is what `march certs` did with a certificate.
type made struct {
	File string    `json:"file"`
	Done string    `json:"done"` // made, renewed, kept
	Ends time.Time `json:"ends"`
}

func newCerts(c *common) *cobra.Command {
	var out string
	var lasts, before, caLasts time.Duration
	cmd := &cobra.Command{
		Use:   "certs FILE",
		Short: "Make and renew the certificates that a cluster needs: of etcd, rooms, consoles and callers",
		Long: `Make the certificates and keys that a cluster needs, in the directory of --out, from a
YAML file with its parts and the host names and addresses of each:

  domain: example.com                                # of SPIFFE IDs
  etcd: {etcd-1: [10.0.0.1], etcd-2: [10.0.0.2], etcd-3: [10.0.0.3]}
  rooms:
    eu-1: {eu-1-0: [10.0.0.1, ids.eu.example.com]}   # instances
  consoles: {console-1: [10.0.0.3]}
  operators: [ann]
  services: [shop]
  cluster: default                                   # the prefix of etcd's keys

Run it again to renew what ends within --renew-before, and after a change of the
file: a new room, another address. It keeps all else, so it may run daily. Copy what
was renewed to its machine: servers read the files again within 10 s.

There are three CAs. ca signs rooms, consoles, operators (spiffe://DOMAIN/operator/NAME)
and services (spiffe://DOMAIN/service/NAME). etcd-ca signs etcd's servers, and
the users that "march etcd roles --certificates" makes. etcd-peers-ca signs what
etcd's members show each other. Keep the CAs' keys off the machines of the
cluster. All files have the mode 0600.`,
		Example: `  march certs certs.yaml --out certs`,
		Args:    exactly("the file of a cluster's parts"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := required(cmd, "out"); err != nil {
				return err
			}
			if lasts <= 0 || before <= 0 || before >= lasts || caLasts < lasts {
				return allocator.Errorf(allocator.Invalid, "renew-before: %v, lasts: %v, ca-lasts: %v; allowed: each "+
					"above 0, the first below the second, and the second up to the third", before, lasts, caLasts)
			}
			content, err := readBounded("file", args[0], 1<<20)
			if err != nil {
				return err
			}
			all, err := readCertified(args[0], content)
			if err != nil {
				return err
			}
			done, err := certify(out, all, time.Now(), lasts, before, caLasts)
			if err != nil {
				return err
			}
			return c.print(done, func(w *tabwriter.Writer) {
				_, _ = fmt.Fprintln(w, "FILE\tDONE\tENDS")
				for _, m := range done {
					_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", m.File, m.Done, m.Ends.UTC().Format(time.RFC3339))
				}
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&out, "out", "", "the directory of the files; it is made if it does not exist")
	flags.DurationVar(&lasts, "lasts", 90*24*time.Hour, "how long a certificate lasts")
	flags.DurationVar(&before, "renew-before", 30*24*time.Hour, "renew what ends within this time")
	flags.DurationVar(&caLasts, "ca-lasts", 10*365*24*time.Hour, "how long a new CA lasts")
	return c.outputFlag(cmd)
}

var partName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// readCertified returns the certificates that a file asks for. Its errors are Invalid.
func readCertified(path string, content []byte) (all []wanted, err error) {
	var file certified
	err = yaml.NewDecoder(bytes.NewReader(content), yaml.Strict()).Decode(&file)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, allocator.Errorf(allocator.Invalid, "%s: %s", path, yaml.FormatError(err, false, true))
	}
	var wrong []error
	refuse := func(format string, args ...any) {
		wrong = append(wrong, allocator.Errorf(allocator.Invalid, path+": "+format, args...))
	}
	if file.Cluster == "" {
		file.Cluster = "default"
	}
	keys, err := record.NewKeys(file.Cluster)
	if err != nil {
		return nil, err
	}
	if !serve.HostName.MatchString(file.Domain) {
		refuse("domain: %.100q; allowed: a name such as example.com", file.Domain)
	}
	add := func(ca, dir, field, name string, hosts []string, leaf certs.Leaf) {
		if !partName.MatchString(name) {
			refuse("%s: %.100q; allowed: 1 to 63 of a-z, 0-9, dot, dash and underscore", field, name)
		}
		for _, host := range hosts {
			if net.ParseIP(host) == nil && !serve.HostName.MatchString(strings.TrimPrefix(host, "*.")) {
				refuse("%s.%s: %.100q; allowed: host names and IP addresses, without a port", field, name, host)
			}
		}
		leaf.Hosts = hosts
		all = append(all, wanted{ca, dir, name, leaf})
	}
	server := func(ca, dir, field, name string, hosts []string, leaf certs.Leaf) {
		if len(hosts) == 0 {
			refuse("%s.%s: no host; allowed: one or more, by which it is called", field, name)
		}
		add(ca, dir, field, name, hosts, leaf)
	}
	user := func(name string) { add(etcdCA, "etcd-users", "user", name, nil, certs.Leaf{Name: name}) }
	for _, name := range sortedKeys(file.Etcd) {
		server(etcdCA, "etcd", "etcd", name, file.Etcd[name], certs.Leaf{})
		server(peersCA, "etcd-peers", "etcd", name, file.Etcd[name], certs.Leaf{Name: name})
	}
	if len(file.Etcd) > 0 {
		user("root") // which makes the others
		user(keys.OperatorRole().Name)
		user(keys.ConsoleRole().Name)
	}
	id := func(path string) []string { return []string{"spiffe://" + file.Domain + path} }
	for _, name := range sortedKeys(file.Rooms) {
		room, err := allocator.ParseRoom(name)
		if err != nil {
			refuse("rooms: %w", err)
			continue
		}
		if len(file.Etcd) > 0 {
			user(keys.RoomRole(room, false).Name)
		}
		for _, instance := range sortedKeys(file.Rooms[name]) {
			server(marchCA, filepath.Join("rooms", name), "rooms."+name, instance, file.Rooms[name][instance],
				certs.Leaf{Name: instance, URIs: id(tlsfiles.Instance(name, instance)[0])})
		}
	}
	for _, name := range sortedKeys(file.Consoles) {
		server(marchCA, "consoles", "consoles", name, file.Consoles[name],
			certs.Leaf{Name: name, URIs: id("/march/console/" + name)})
	}
	for kind, names := range map[string][]string{"operator": file.Operators, "service": file.Services} {
		for _, name := range names {
			add(marchCA, kind+"s", kind+"s", name, nil, certs.Leaf{Name: name, URIs: id("/" + kind + "/" + name)})
		}
	}
	slices.SortFunc(all, compareFiles)
	for i := range all[min(1, len(all)):] {
		if compareFiles(all[i], all[i+1]) == 0 {
			refuse("%s: given twice; allowed: once", all[i].file())
		}
	}
	return all, errors.Join(wrong...)
}

func (c wanted) file() string { return filepath.Join(c.dir, c.name+".pem") }

func compareFiles(a, b wanted) int { return strings.Compare(a.file(), b.file()) }

// certify makes and renews certificates in a folder, and the CAs that they need.
func certify(out string, all []wanted, now time.Time, lasts, before, caLasts time.Duration) ([]made, error) {
	var done []made
	cas := make(map[string]*certs.CA)
	if err := os.MkdirAll(out, 0o700); err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "out: %w", err)
	}
	for _, c := range all {
		if cas[c.ca] == nil {
			ca, fresh, err := certs.Open(out, c.ca, caLasts)
			if err != nil {
				return done, allocator.Errorf(allocator.Invalid, "out: %w", err)
			}
			if !ca.Until().After(now.Add(before)) {
				return done, allocator.Errorf(allocator.Invalid, "out: the CA %s ends at %s, within --renew-before; "+
					"make another directory, and have the servers trust both CAs for a time", c.ca,
					ca.Until().UTC().Format(time.RFC3339))
			}
			cas[c.ca] = ca
			done = append(done, made{c.ca + ".pem", map[bool]string{true: "made", false: "kept"}[fresh], ca.Until()})
		}
		ca, dir := cas[c.ca], filepath.Join(out, c.dir)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return done, err
		}
		m := made{File: c.file(), Done: "renewed"}
		_, err := os.Stat(filepath.Join(out, m.File))
		if errors.Is(err, os.ErrNotExist) {
			m.Done = "made"
		}
		until, same := ca.Has(dir, c.name, c.leaf)
		if m.Ends = until; same && until.After(now.Add(before)) {
			m.Done = "kept"
		} else {
			if m.Ends = now.Add(lasts); m.Ends.After(ca.Until()) {
				m.Ends = ca.Until()
			}
			leaf := c.leaf
			leaf.Until = m.Ends
			if _, err := ca.Write(dir, c.name, leaf); err != nil {
				return done, err
			}
		}
		done = append(done, m)
	}
	return done, nil
}
