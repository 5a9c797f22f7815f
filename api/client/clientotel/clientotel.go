// Package clientotel shows a client's metrics to OpenTelemetry.
package clientotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/march-id/march/api/client"
)

// Observe makes an instrument of a meter for each of a client's metrics, with the attribute tag. Unregister of the
// registration ends it.
func Observe(c *client.Client, meter metric.Meter) (metric.Registration, error) {
	metrics := client.Metrics()
	instruments := make([]metric.Observable, len(metrics))
	observe := make([]func(metric.Observer, client.Status, metric.MeasurementOption), len(metrics))
	for i, m := range metrics {
		if m.Counter {
			counter, err := meter.Float64ObservableCounter(m.Name, metric.WithDescription(m.Help))
			if err != nil {
				return nil, fmt.Errorf("metric %s: %w", m.Name, err)
			}
			instruments[i] = counter
			observe[i] = func(o metric.Observer, s client.Status, tag metric.MeasurementOption) {
				o.ObserveFloat64(counter, m.Of(s), tag)
			}
			continue
		}
		gauge, err := meter.Float64ObservableGauge(m.Name, metric.WithDescription(m.Help))
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", m.Name, err)
		}
		instruments[i] = gauge
		observe[i] = func(o metric.Observer, s client.Status, tag metric.MeasurementOption) {
			o.ObserveFloat64(gauge, m.Of(s), tag)
		}
	}
	registration, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, s := range c.Status() {
			tag := metric.WithAttributes(attribute.String("tag", string(s.Tag)))
			for _, one := range observe {
				one(o, s, tag)
			}
		}
		return nil
	}, instruments...)
	if err != nil {
		return nil, fmt.Errorf("metrics of a client: %w", err)
	}
	return registration, nil
}
