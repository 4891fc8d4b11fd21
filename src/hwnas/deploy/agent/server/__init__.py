"""Server of the agent: requests, the queue of jobs, and the processes that time networks."""

__all__: list[str] = []
