package api

import marchv1 "github.com/march-id/march/api/march/v1"

// Ended reports whether a migration in a state makes no more moves.
func Ended(state marchv1.MigrationState) bool {
	return state == marchv1.MigrationState_MIGRATION_STATE_DONE ||
		state == marchv1.MigrationState_MIGRATION_STATE_ABORTED
}
