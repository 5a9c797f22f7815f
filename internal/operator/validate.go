package operator

import (
	"errors"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// ValidateLayout returns every constraint that a layout breaks.
func ValidateLayout(l *marchv1.Layout) (*marchv1.ValidateLayoutResponse, error) {
	answer := &marchv1.ValidateLayoutResponse{}
	_, err := api.LayoutFromProto(l)
	var invalid *allocator.LayoutError
	if err == nil {
		return answer, nil
	}
	if !errors.As(err, &invalid) {
		return nil, err
	}
	answer.Problems = invalid.Problems
	for i, text := range invalid.Problems {
		detail := &marchv1.LayoutProblem{Text: text}
		if i < len(invalid.Rooms) {
			for _, room := range invalid.Rooms[i] {
				detail.Rooms = append(detail.Rooms, string(room))
			}
		}
		answer.Details = append(answer.Details, detail)
	}
	return answer, nil
}
