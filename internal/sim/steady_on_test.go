//go:build steady

package sim_test

const steady = true
