package cluster

import (
	"context"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/cmd/chaos/internal/traffic"
)

// Root is etcd's own user, and Password the password of all users.
const Root, Password = "root", "chaos"

// passwordFile is the file with Password, for the programs.
func (c *Cluster) passwordFile() string { return filepath.Join(c.Dir, "etcd.password") }

// tokens is the file of the tokens of TinyId's callers.
func (c *Cluster) tokens() string { return filepath.Join(c.Dir, "tinyid.tokens") }

// policy is the file of callers' rights.
func (c *Cluster) policy() string { return filepath.Join(c.Dir, "policy.yaml") }

// AsOperator returns the flags of an operator's command that calls etcd.
func (c *Cluster) AsOperator() []string { return c.as(c.Keys.OperatorRole()) }

func (c *Cluster) as(role record.Role) []string {
	return []string{"--etcd-user", role.Name, "--etcd-password-file", c.passwordFile()}
}

// RequireUsers has etcd ask everyone for a user from now on: those of `march etcd roles`, one for each
// room, one for consoles and one for operators.
func (c *Cluster) RequireUsers(ctx context.Context) error {
	if err := os.WriteFile(c.passwordFile(), []byte(Password), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(c.tokens(), []byte(traffic.Token+" *\n"), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(c.policy(), []byte(c.Policy), 0o600); err != nil {
		return err
	}
	client, err := c.Members[0].Etcd()
	if err != nil {
		return err
	}
	roles := []record.Role{c.Keys.ConsoleRole(), c.Keys.OperatorRole()}
	for _, room := range c.Rooms {
		roles = append(roles, c.Keys.RoomRole(room.Name, false))
	}
	for _, role := range roles {
		if _, err := client.RoleAdd(ctx, role.Name); err != nil {
			return err
		}
		for _, right := range role.Rights {
			may := clientv3.PermissionType(clientv3.PermRead)
			if right.Write {
				may = clientv3.PermissionType(clientv3.PermWrite)
			}
			if _, err := client.RoleGrantPermission(ctx, role.Name, right.Key, right.End, may); err != nil {
				return err
			}
		}
		if err := addUser(ctx, client, role.Name, role.Name); err != nil {
			return err
		}
	}
	if err := addUser(ctx, client, Root, Root); err != nil {
		return err
	}
	_, err = client.AuthEnable(ctx)
	return err
}

func addUser(ctx context.Context, client *clientv3.Client, user, role string) error {
	if _, err := client.UserAdd(ctx, user, Password); err != nil {
		return err
	}
	_, err := client.UserGrantRole(ctx, user, role)
	return err
}
