"""Commands about runs, queues, schedules, webhooks, workers and keys."""
