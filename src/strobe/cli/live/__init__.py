"""The commands of a live system: `up`, `coordinator`, `node`, `restart`, `leave`, `restore`.

`strobe up` is a supervisor: it starts `strobe coordinator` and a `strobe node` for each process as children, restarts
them, and shows the status that the coordinator reports. The other commands run one program, or make one API request.
In: a system, its settings and a store. Out: a running system, its status on the terminal, and an exit code.

Public: `coordinator`, `leave`, `node`, `restart`, `restore`, `supervisor.Supervisor`, `up`, `up_display`, `up_session`.
"""
