package main

import (
	"crypto/rand"
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

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/smallfile"
	"github.com/march-id/march/internal/yamlfile"
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

// certFlags say where certificates are, and how long they last.
type certFlags struct {
	Out     string        `flag:"out" help:"the directory of the files; it is made if it does not exist"`
	Lasts   time.Duration `flag:"lasts" help:"how long a certificate lasts"`
	Before  time.Duration `flag:"renew-before" help:"renew what ends within this time"`
	CALasts time.Duration `flag:"ca-lasts" help:"how long a new CA lasts"`
}

func newCerts(c *common) *cobra.Command {
	const day = 24 * time.Hour
	f := certFlags{Lasts: 90 * day, Before: 30 * day, CALasts: 3650 * day}
	cmd := command(callRow{
		use:   "certs FILE",
		short: "Make and renew the certificates that a cluster needs: of etcd, rooms, consoles and callers",
		long: `Make the certificates and keys that a cluster needs, in the directory of --out, from a
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
		example: `  march certs certs.yaml --out certs`,
	}, exactly("the file of a cluster's parts"), func(cmd *cobra.Command, args []string) error {
		if err := required(cmd, "out"); err != nil {
			return err
		}
		if f.Lasts <= 0 || f.Before <= 0 || f.Before >= f.Lasts || f.CALasts < f.Lasts {
			return invalidf("renew-before: %v, lasts: %v, ca-lasts: %v; allowed: each "+
				"above 0, the first below the second, and the second up to the third", f.Before, f.Lasts, f.CALasts)
		}
		content, err := readBounded("file", args[0], 1<<20)
		if err != nil {
			return err
		}
		all, err := readCertified(args[0], content)
		if err != nil {
			return err
		}
		done, err := f.certify(all, time.Now())
		if err != nil {
			return err
		}
		return c.print(done, func(w *tabwriter.Writer) {
			table(w, "FILE\tDONE\tENDS", done, func(m made) []any {
				return []any{m.File, m.Done, m.Ends.UTC().Format(time.RFC3339)}
			})
		})
	})
	return c.outputFlag(addFlags(cmd, &f))
}

var partName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// readCertified returns the certificates that a file asks for. Its errors are Invalid.
func readCertified(path string, content []byte) (all []wanted, err error) {
	var file certified
	f := yamlfile.Read(path, content, &file)
	if file.Cluster == "" {
		file.Cluster = "default"
	}
	keys, err := record.NewKeys(file.Cluster)
	if err != nil {
		return nil, err
	}
	if !serve.HostName.MatchString(file.Domain) {
		f.Refuse("domain", "domain: %.100q; allowed: a name such as example.com", file.Domain)
	}
	add := func(ca, dir, field, name string, hosts []string, leaf certs.Leaf) {
		at := field + "." + name
		if !partName.MatchString(name) {
			f.Refuse(at, "%s: %.100q; allowed: 1 to 63 of a-z, 0-9, dot, dash and underscore", field, name)
		}
		for _, host := range hosts {
			if net.ParseIP(host) == nil && !serve.HostName.MatchString(strings.TrimPrefix(host, "*.")) {
				f.Refuse(at, "%s: %.100q; allowed: host names and IP addresses, without a port", at, host)
			}
		}
		leaf.Hosts = hosts
		all = append(all, wanted{ca, dir, name, leaf})
	}
	server := func(ca, dir, field, name string, hosts []string, leaf certs.Leaf) {
		if at := field + "." + name; len(hosts) == 0 {
			f.Refuse(at, "%s: no host; allowed: one or more, by which it is called", at)
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
			f.Refuse("rooms."+name, "rooms: %w", err)
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
			f.Refuse("", "%s: given twice; allowed: once", all[i].file())
		}
	}
	return all, f.Err()
}

func (c wanted) file() string { return filepath.Join(c.dir, c.name+".pem") }

func compareFiles(a, b wanted) int { return strings.Compare(a.file(), b.file()) }

// certify makes and renews certificates in a folder, and the CAs that they need.
func (f certFlags) certify(all []wanted, now time.Time) ([]made, error) {
	var done []made
	cas := make(map[string]*certs.CA)
	if err := os.MkdirAll(f.Out, 0o700); err != nil {
		return nil, invalidf("out: %w", err)
	}
	for _, c := range all {
		if cas[c.ca] == nil {
			ca, fresh, err := certs.Open(f.Out, c.ca, f.CALasts)
			if err != nil {
				return done, invalidf("out: %w", err)
			}
			if !ca.Until().After(now.Add(f.Before)) {
				return done, invalidf("out: the CA %s ends at %s, within --renew-before; make another directory, and "+
					"have the servers trust both CAs for a time", c.ca, ca.Until().UTC().Format(time.RFC3339))
			}
			cas[c.ca] = ca
			done = append(done, made{c.ca + ".pem", map[bool]string{true: "made", false: "kept"}[fresh], ca.Until()})
		}
		ca, dir := cas[c.ca], filepath.Join(f.Out, c.dir)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return done, err
		}
		m := made{File: c.file(), Done: "renewed"}
		_, err := os.Stat(filepath.Join(f.Out, m.File))
		if errors.Is(err, os.ErrNotExist) {
			m.Done = "made"
		}
		until, same := ca.Has(dir, c.name, c.leaf)
		if m.Ends = until; same && until.After(now.Add(f.Before)) {
			m.Done = "kept"
		} else {
			if m.Ends = now.Add(f.Lasts); m.Ends.After(ca.Until()) {
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

func newKey(c *common) *cobra.Command {
	cmd := group("key", "Create and check keys of opaque numbers", newKeyCreate(c), newKeyCheck(c))
	return c.outputFlag(cmd)
}

func newKeyCreate(c *common) *cobra.Command {
	return command(callRow{
		use: "create FILE", short: "Make a new key of opaque numbers, and print its check value",
		long: `Make a new key of opaque numbers, which a tag's texts may be, and print its check
value, which the tag needs. The file must not exist yet. Give it to each room with
--opaque-key NAME=FILE, and keep a copy: without it no text leads back to its ID.`,
		example: `  march key create orders-1.key`,
	}, exactly("a file"), func(_ *cobra.Command, args []string) error {
		secret := make([]byte, format.KeySize)
		_, _ = rand.Read(secret) // it never fails
		if err := createSecret("file", args[0], fmt.Sprintf("%x\n", secret)); err != nil {
			return err
		}
		return c.printCheck(args[0])
	})
}

func newKeyCheck(c *common) *cobra.Command {
	return command(callRow{
		use: "check FILE", short: "Print the check value of a key, as a tag has it",
		example: `  march key check orders-1.key`,
	}, exactly("a file"), func(_ *cobra.Command, args []string) error { return c.printCheck(args[0]) })
}

// createSecret writes a secret to a new file, which only its owner may read, and to the disk. field names the file in
// errors. An old file stays: what it has may be the only copy.
func createSecret(field, file, secret string) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return usageError{allocator.Errorf(allocator.Exists,
			"%s: %s exists already; allowed: a new file, as its secret would be lost", field, file)}
	}
	if err != nil {
		return usagef("%s: %w", field, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteString(secret); err != nil {
		return err
	}
	return f.Sync()
}

// printCheck prints the check value of a key. It does not depend on the key's name.
func (c *common) printCheck(file string) error {
	key, err := readKey("file", "key", file)
	if err != nil {
		return usageError{err}
	}
	return c.print(map[string]string{"keyCheck": key.CheckValue()}, func(w *tabwriter.Writer) {
		put(w, "%s\n", key.CheckValue())
	})
}

// keyFiles are keys of opaque numbers, NAME=FILE.
type keyFiles struct {
	OpaqueKeys []string `flag:"opaque-key" help:"NAME=FILE: a key of opaque numbers, as 'march key create' makes it; may be repeated"`
}

// readKeys reads the keys of --opaque-key. Its errors are usage errors.
func readKeys(flags []string) (keys []format.Key, err error) {
	for _, flag := range flags {
		name, file, found := strings.Cut(flag, "=")
		if !found {
			return nil, usagef("opaque-key: %q; allowed: NAME=FILE", flag)
		}
		if slices.ContainsFunc(keys, func(k format.Key) bool { return k.Name() == name }) {
			return nil, usagef("opaque-key: %s is named twice; allowed: one file for each key", name)
		}
		key, err := readKey("opaque-key", name, file)
		if err != nil {
			return nil, usageError{err}
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// readKey reads the file of a key, which others must neither read nor write. A group may
// read it, as of a secret that Kubernetes mounts. Its errors are Invalid, and repeat
// nothing of the file.
func readKey(setting, name, file string) (key format.Key, err error) {
	if why := smallfile.Exposed(file); why != "" {
		return key, invalidf("%s: %s", setting, why)
	}
	text, err := smallfile.Read(setting, file, maxSecret)
	if err != nil {
		return key, err
	}
	if key, err = format.ParseKey(name, string(text)); err != nil {
		return key, fmt.Errorf("%s: %w", setting, err)
	}
	return key, nil
}

func newToken(c *common) *cobra.Command {
	var file, out string
	var lasts time.Duration
	create := command(callRow{
		use: "create NAME", short: "Make a token, and add its hash to a file of tokens",
		long: `Make a token, and print it, once, or write it to the file of --out, which only
you can read. Only its hash goes to the file of --tokens, which rooms and
consoles read; a policy calls its owner token:NAME. To revoke a token, delete
its line: the servers follow within seconds; where it was the last one, leave a
line such as "# none", as an empty file is taken for a broken one. Two tokens may have
one name, so that the new one is in use before the old one goes.`,
		example: `  march token create shop --tokens tokens --expires 2160h --out shop.token`,
	}, exactly("the token's name"), func(cmd *cobra.Command, args []string) error {
		if lasts < 0 {
			return invalidf("expires: %v; allowed: 0s, for a token that does not end, or more", lasts)
		}
		if err := required(cmd, "tokens"); err != nil {
			return err
		}
		var ends time.Time
		if lasts > 0 {
			ends = time.Now().Add(lasts)
		}
		token, line, err := access.NewToken(args[0], ends)
		if err != nil {
			return err
		}
		if out != "" { // first, so that no line is without its token
			if err := createSecret("out", out, token+"\n"); err != nil {
				return err
			}
		}
		if err := appendLine(file, line); err != nil {
			return err
		}
		where := "in " + out
		if out == "" {
			where = "shown only now: keep it"
			if _, err := fmt.Fprintln(c.stdout, token); err != nil {
				return err
			}
		}
		put(c.stderr, "the token of token:%s is %s. Its hash is in %s\n", args[0], where, file)
		return nil
	})
	create.PersistentFlags().StringVar(&file, "tokens", "",
		"the file of tokens' hashes; it is made if it does not exist")
	create.Flags().StringVar(&out, "out", "",
		"a new file for the token, which only you can read, instead of printing it")
	create.Flags().DurationVar(&lasts, "expires", 0,
		"how long the token may be used; 0 for as long as it is in the file")
	return group("token", "Make tokens with which callers prove who they are", create)
}

// appendLine adds a line to a file. A last line that has no end gets one.
func appendLine(path, line string) error {
	before, err := os.ReadFile(path) //nolint:gosec // that the operator names
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return invalidf("tokens: %w", err)
	}
	if n := len(before); n > 0 && before[n-1] != '\n' {
		line = "\n" + line
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return invalidf("tokens: %w", err)
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

func newPolicy(c *common) *cobra.Command {
	return group("policy", "Check a policy, and explain what it allows", newPolicyValidate(c), newPolicyExplain(c))
}

func newPolicyValidate(c *common) *cobra.Command {
	return command(callRow{
		use: "validate FILE", short: "Check a policy's file, and show each mistake",
		long: `Check a policy's file, as a server with --policy does, and show each mistake with
its line. Exit code 2 says that there are mistakes.`,
		example: `  march policy validate policy.yaml`,
	}, exactly("a policy's file"), func(_ *cobra.Command, args []string) error {
		if _, err := readPolicy(args[0]); err != nil {
			return err
		}
		_, err := fmt.Fprintf(c.stdout, "%s is a policy\n", args[0])
		return err
	})
}

func newPolicyExplain(c *common) *cobra.Command {
	var path, room string
	cmd := command(callRow{
		use: "explain SUBJECT CALL TAG", short: "Say whether a subject may make a call for a tag, and why",
		long: `Say whether a subject may make a call for a tag, and for each grant of the policy
why it allows it or not. A subject with groups is written with commas:
jwt:alice,group:ops. TAG is "" for a call that names no tag. Exit code 1 says
that the call is refused.`,
		example: `  march policy explain token:shop Next order --policy policy.yaml --room eu-1`,
	}, exactly("a subject", "a call", "a tag"), func(cmd *cobra.Command, args []string) error {
		if err := required(cmd, "policy"); err != nil {
			return err
		}
		p, err := readPolicy(path)
		if err != nil {
			return err
		}
		var names []string
		if args[0] != policy.Anonymous {
			names = strings.Split(args[0], ",")
		}
		call, err := callNamed(args[1], room)
		if err != nil {
			return err
		}
		text, allowed := p.Explain(call, args[2], room, names...)
		if _, err := io.WriteString(c.stdout, text); err != nil || allowed {
			return err
		}
		return finding{errors.New("the policy refuses this call")}
	})
	cmd.PersistentFlags().StringVar(&path, "policy", "", "the policy's file")
	cmd.Flags().StringVar(&room, "room", "", "the room whose server is asked; empty for a console, or for any room")
	return cmd
}

// callNamed returns the call with a name, with or without its service. Without one, a call of
// a room goes before a console's of the same name where a room is named.
func callNamed(name, room string) (*policy.Call, error) {
	var found []*policy.Call
	var known []string
	for _, c := range policy.Calls() {
		service, short, _ := strings.Cut(c.Name(), "/")
		known = append(known, c.Name())
		switch {
		case name == c.Name(), name == c.Method:
			return c, nil
		case name == short && (service == "ConsoleService") == (room == "") || name == short && service == "IDService":
			found = append(found, c)
		}
	}
	if len(found) == 0 {
		return nil, invalidf("call: %.100q; allowed: %s", name, strings.Join(known, ", "))
	}
	return found[0], nil
}

func readPolicy(path string) (*policy.Policy, error) {
	content, err := smallfile.Read("policy", path, policy.MaxFile)
	if err != nil {
		return nil, err
	}
	return policy.Parse(path, content)
}

func newEtcd(c *common) *cobra.Command {
	var cluster string
	var tags, certificates, upgraded bool
	roles := command(callRow{
		use: "roles ROOM...",
		short: "Print the etcdctl commands that make a role and a user for each room, for consoles and for " +
			"operators",
		long: `Print the etcdctl commands that make a role and a user for each room, for consoles
and for operators. Nothing is asked of etcd, and nothing changes. All roles read
all keys of the cluster. A room writes its own marks, registrations and
heartbeats, workers and machine IDs, and those of no other room. It also writes
the epoch, the beat and the audit. A console writes no workers. An operator, whose
commands such as recover and halt reach etcd, writes all keys.

A user's password is read from the file that the command names: NAME.password.
Servers read it from --etcd-password-file, again after etcd refused it, so a
changed password needs no restart. The commands may run again, with "sh -e" too:
for a room that is new, or a right that a room lacks. etcd keeps what it has, and
the passwords that its users have.

Before "march cluster upgrade", rooms also write keys of workers and machine IDs
that all of them share. Run the commands without --upgraded before it, and those
with --upgraded after it: they take these rights away.

With these roles an instance cannot raise the marks of another room. A recover
that goes on without the instance then makes it halt leasing, in all rooms.`,
		example: `  march etcd roles eu-1 eu-2 us-1 > roles.sh`,
	}, atLeast("a room"), func(_ *cobra.Command, args []string) error {
		keys, err := record.NewKeys(cluster)
		if err != nil {
			return err
		}
		all := []record.Role{keys.ConsoleRole(), keys.OperatorRole()}
		for _, arg := range args {
			room, err := allocator.ParseRoom(arg)
			if err != nil {
				return err
			}
			all = append(all, keys.RoomRole(room, tags))
		}
		_, err = io.WriteString(c.stdout, rolesScript(all, certificates, upgraded))
		return err
	})
	flags := roles.Flags()
	roles.PersistentFlags().StringVar(&cluster, "cluster", "default",
		"the cluster's name: its keys are under /march/NAME/")
	flags.BoolVar(&tags, "room-tags", false, "let rooms write tags' settings, too: "+
		"for operators who change tags at a room, and for rooms that create tags")
	flags.BoolVar(&certificates, "certificates", false,
		"make users without a password: etcd knows them by the common name of their client certificates")
	flags.BoolVar(&upgraded, "upgraded", false, "of a cluster with the formats of this version (march cluster "+
		"upgrade): take away the rights that rooms needed before")
	return group("etcd", "Make users and roles of etcd for rooms, consoles and operators", roles)
}

// rolesScript returns the commands that make roles, and a user for each of them.
func rolesScript(roles []record.Role, certificates, upgraded bool) string {
	var b strings.Builder
	for _, role := range roles {
		how := "--interactive=false < " + role.Name + ".password"
		if certificates {
			how = "--no-password"
		}
		for _, command := range slices.Concat(role.Commands(upgraded), role.UserCommands(how)) {
			b.WriteString(command + "\n")
		}
		b.WriteString("\n")
	}
	b.WriteString("# once etcd has a user root with the role root: etcdctl auth enable\n")
	return b.String()
}
