"""The official Python client of the Model Context Protocol against a server of ours.

    client.py URL KEY SHOAL DATA_DIRECTORY

Lists and calls every tool of the server and of a sandbox over HTTP, and some over standard input and
output. The client checks every result against the schema of its tool. Every check can fail; the
first one that does ends it, and so does a tool that was never called.
"""

import asyncio
import contextlib
import json
import os
import sys

import httpx
from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

# The tools of a sandbox, by the names that clients of Blaxel's sandboxes know.
NAMES = {
    "processesList", "processExecute", "processGet", "processGetLogs", "processStop", "processKill",
    "fsGetWorkingDirectory", "fsListDirectory", "fsReadFile", "fsWriteFile", "fsEditFile",
    "fsDeleteFileOrDirectory", "codegenFileSearch", "codegenGrepSearch", "codegenReadFileRange",
    "codegenListDir", "stop", "status",
}


class Tools:
    """A session of the client, which remembers which tools were called."""

    def __init__(self, session, tools):
        self.session, self.tools, self.called = session, tools, set()

    @classmethod
    async def of(cls, session):
        said = await session.initialize()
        assert said.serverInfo.name.startswith("shoal"), said
        assert said.instructions, said
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        for tool in tools.values():
            assert tool.description and tool.annotations.readOnlyHint is not None, tool
            assert tool.inputSchema["additionalProperties"] is False, tool
            assert tool.outputSchema["type"] == "object", tool
        return cls(session, tools)

    async def __call__(self, name, /, **arguments):
        result = await self.session.call_tool(name, arguments)
        assert not result.isError, f"{name}: {result.content[0].text}"
        assert json.loads(result.content[0].text) == result.structuredContent, name
        self.called.add(name)
        return result.structuredContent

    async def refused(self, code, name, /, **arguments):
        result = await self.session.call_tool(name, arguments)
        assert result.isError, f"{name}: {result}"
        assert result.content[0].text.startswith(f"{code}: "), result.content[0].text
        assert result.structuredContent["code"] == code, result.structuredContent
        assert result.structuredContent["remedy"], result.structuredContent

    def all_called(self):
        assert self.called == set(self.tools), set(self.tools) - self.called


@contextlib.asynccontextmanager
async def over_http(url, key, **headers):
    headers = {"Authorization": f"Bearer {key}", **headers}
    async with (
        httpx.AsyncClient(headers=headers, timeout=60) as http,
        streamable_http_client(url, http_client=http) as (reads, writes, session_id),
        ClientSession(reads, writes) as session,
    ):
        yield await Tools.of(session)
        assert session_id() is None, "there are no sessions to keep"


@contextlib.asynccontextmanager
async def over_stdio(program, data, *arguments):
    environment = {"SHOAL_DATA_DIR": data, "PATH": os.environ["PATH"]}
    parameters = StdioServerParameters(command=program, args=["mcp", *arguments], env=environment)
    async with stdio_client(parameters) as (reads, writes), ClientSession(reads, writes) as session:
        yield await Tools.of(session)


async def the_server(tools):
    made = await tools("checkout", template="default", ttl_s=600, labels={"by": "mcp"})
    sandbox = made["sandbox"]["id"]
    of = {"sandbox_id": sandbox}
    ran = await tools("exec", **of, command="echo out; echo err >&2; exit 3")
    assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (3, "out\n", "err\n"), ran
    ran = await tools("exec", **of, argv=["cat"], stdin="given")
    assert ran["stdout"] == "given", ran
    await tools("write_file", **of, path="src/a.py", content="print('one')\n", mode="0755")
    await tools("edit_file", **of, path="src/a.py", old_text="one", new_text="two")
    ran = await tools("exec", **of, command="python3 src/a.py")
    assert ran["stdout"] == "two\n", ran
    read = await tools("read_file", **of, path="/workspace/src/a.py")
    assert (read["content"], read["mode"]) == ("print('two')\n", "0755"), read
    assert (await tools("stat_file", **of, path="src/a.py"))["size"] == 13
    assert (await tools("list_files", **of, path="src"))["entries"][0]["name"] == "a.py"
    await tools("make_directory", **of, path="more/of/it")
    await tools("move_file", **of, **{"from": "src/a.py", "to": "more/b.py"})
    found = await tools("find_files", **of, path="/workspace", name=["*.py"], kind=["file"])
    assert [one["path"] for one in found["files"]] == ["more/b.py"], found
    found = await tools("search_files", **of, path="/workspace", text="TWO", ignore_case=True)
    assert [(one["path"], one["line"]) for one in found["matches"]] == [("more/b.py", 1)], found
    await processes_of_the_server(tools, of)
    await tools("delete_file", **of, path="more", recursive=True)
    await tools.refused("path_not_found", "read_file", **of, path="more/b.py")
    assert (await tools("get_sandbox", **of))["lease"] == made["id"]
    assert (await tools("why_sandbox", **of))["status"] == "alive"
    assert (await tools("renew_sandbox", **of, ttl_s=60))["id"] == sandbox
    listed = await tools("list_sandboxes", label=["by=mcp"])
    assert [one["id"] for one in listed["sandboxes"]] == [sandbox], listed
    await tools("return_sandbox", **of)
    await tools.refused("sandbox_gone", "exec", **of, command="true")
    other = await tools("create_sandbox", template="default")
    await tools("delete_sandbox", sandbox_id=other["id"])
    assert (await tools("list_pools"))["pools"][0]["template"] == "default"
    assert (await tools("get_pool", template="default"))["template"] == "default"
    assert (await tools("list_templates"))["templates"][0]["name"] == "default"
    assert (await tools("get_template", name="default"))["name"] == "default"
    assert (await tools("get_stats"))["pool"]["max_capacity"] > 0
    await tools.refused("template_unknown", "checkout", template="nosuch")
    await tools.refused("bad_request", "checkout", template="default", tll_s=5)
    try:
        result = await tools.session.call_tool("nosuch", {})
        assert result.isError, result
    except McpError as error:
        assert "nosuch" in str(error), error


async def processes_of_the_server(tools, of):
    """Processes, and what keeps a sandbox awake, by the server's own words."""
    ran = await tools("start_process", **of, command="echo hi; exit 4", wait=True)
    assert (ran["status"], ran["exit_code"], ran["output"]["stdout"]) == ("failed", 4, "hi\n"), ran
    assert (await tools("list_ports", **of))["ports"] == []
    cat = await tools("start_process", **of, argv=["cat"], name="cat", stdin_open=True, keep_alive=True)
    of_cat = {**of, "process": "cat"}
    assert (await tools("get_process", **of_cat))["pid"] == cat["pid"]
    status = await tools("sandbox_status", **of)
    assert (status["state"], len(status["keep_alive_processes"])) == ("awake", 1), status
    assert (await tools("stop_keeping_awake", **of))["state"] == "auto"
    await tools("write_stdin", **of_cat, stdin="given\n")
    await tools("close_stdin", **of_cat)
    ended = await tools("wait_process", **of_cat, timeout_ms=5000)
    assert (ended["status"], ended["exit_code"]) == ("completed", 0), ended
    log = await tools("process_logs", **of_cat)
    assert "".join(piece["data"] for piece in log["pieces"]) == "given\n", log
    await tools("start_process", **of, command="sleep 60", name="first")
    assert (await tools("stop_process", **of, process="first"))["status"] == "stopped"
    await tools("start_process", **of, command="sleep 60", name="second")
    assert (await tools("kill_process", **of, process="second"))["status"] == "killed"
    listed = (await tools("list_processes", **of))["processes"]
    assert [one["name"] for one in listed][:3] == ["second", "first", "cat"], listed


async def conversations(tools):
    made = await tools("create_session", template="default", metadata={"by": "mcp"})
    of = {"session_id": made["id"]}
    ran = await tools("exec", sandbox_id=made["sandbox_id"], command="echo kept > a")
    assert ran["exit_code"] == 0, ran
    assert (await tools("get_session", **of))["status"] == "active"
    listed = await tools("list_sessions", metadata=["by=mcp"])
    assert [one["id"] for one in listed["sessions"]] == [made["id"]], listed
    assert (await tools("pause_session", **of))["status"] == "paused"
    again = await tools("resume_session", **of)
    assert again["status"] == "active", again
    read = await tools("read_file", sandbox_id=again["sandbox_id"], path="a")
    assert read["content"] == "kept\n", read
    await tools.refused("sandbox_unknown", "exec", sandbox_id="none", command="true")
    turn = await tools("send_turn", **of, input="cat a")
    listed = await tools("list_turns", **of)
    assert [one["id"] for one in listed["turns"]] == [turn["id"]], listed
    told = await tools("get_turn", **of, turn_id=turn["id"])
    assert told["outcome"] == "completed", told
    await tools("end_session", **of)


async def files_of_a_sandbox(tools):
    assert (await tools("fsGetWorkingDirectory"))["path"] == "/workspace"
    text = "def one():\n    return 1\n\n# needle here\n"
    await tools("fsWriteFile", path="app/main.py", content=text, permissions="0755")
    await tools("fsWriteFile", path="app/empty", isDirectory=True)
    read = await tools("fsReadFile", path="app/main.py")
    assert (read["content"], read["permissions"], read["name"]) == (text, "755", "main.py"), read
    listed = (await tools("fsListDirectory", path="/workspace/app"))["directory"]
    assert [one["name"] for one in listed["files"]] == ["main.py"], listed
    assert [one["name"] for one in listed["subdirectories"]] == ["empty"], listed
    same = (await tools("codegenListDir", relativeWorkspacePath="app"))["directory"]
    assert same["path"] == "/workspace/app" and same["files"] == listed["files"], same
    found = await tools("codegenFileSearch", query="mnpy")
    assert found["matches"] == ["/workspace/app/main.py"], found
    found = await tools("codegenGrepSearch", query="NEEDLE", includePattern="*.py")
    assert [(one["path"], one["line"]) for one in found["results"]] == [("/workspace/app/main.py", 4)], found
    assert (await tools("codegenGrepSearch", query="needle", caseSensitive=True))["results"]
    assert (await tools("codegenGrepSearch", query="nowhere at all"))["results"] == []
    lines = await tools(
        "codegenReadFileRange",
        targetFile="app/main.py", startLineOneIndexed=2, endLineOneIndexedInclusive=99,
    )
    assert lines["content"] == "".join(text.splitlines(True)[1:]), lines
    edited = await tools("fsEditFile", path="app/main.py", oldString="return 1", newString="return 2")
    assert edited["occurrencesReplaced"] == 1, edited
    await tools.refused("invalid_argument", "fsEditFile", path="app/main.py", oldString="e", newString="x")
    await tools("fsDeleteFileOrDirectory", path="app/empty")
    await tools.refused("path_not_found", "fsReadFile", path="app/empty")
    await tools.refused("path_denied", "fsWriteFile", path="/usr/x", content="")


async def processes_of_a_sandbox(tools):
    ran = await tools("processExecute", command="echo out; echo err >&2; exit 3", waitForCompletion=True)
    assert (ran["status"], ran["exitCode"]) == ("failed", 3), ran
    assert sorted(ran["logs"].splitlines()) == ["err", "out"], ran
    # The wait ends, and nothing else.
    slow = await tools(
        "processExecute", command="sleep 2; echo late", name="slow", waitForCompletion=True, timeout=1
    )
    assert (slow["pollRequired"], slow["status"], slow["exitCode"]) == (True, "running", None), slow
    while (slow := await tools("processGet", identifier="slow"))["status"] == "running":
        await asyncio.sleep(0.1)
    assert (slow["status"], slow["exitCode"], slow["logs"]) == ("completed", 0, "late\n"), slow
    assert (await tools("processGetLogs", identifier=slow["pid"]))["logs"] == "late\n"
    server = await tools(
        "processExecute",
        command="exec python3 -m http.server 8123", name="web", keepAlive=True, timeout=3600,
        waitForPorts=[8123], workingDir="/tmp", env={"A": "b"},
    )
    assert (server["status"], server["pollRequired"]) == ("running", None), server
    await tools.refused("process_name_taken", "processExecute", command="true", name="web")
    await tools.refused("port_taken", "processExecute", command="true", waitForPorts=[8123])
    await tools.refused("process_unknown", "processGet", identifier="nosuch")
    status = await tools("status")
    kept = status["keepAliveProcesses"]
    assert (status["state"], status["scheduledStopAt"], len(kept)) == ("awake", None, 1), status
    expected = (server["pid"], "web", "exec python3 -m http.server 8123", 3600)
    assert tuple(kept[0][field] for field in ("pid", "name", "command", "timeout")) == expected, kept
    later = await tools("stop", timeout=300)
    assert later["state"] == "awake" and later["scheduledStopAt"].endswith("Z"), later
    now = await tools("stop")
    assert now == {"state": "auto", "scheduledStopAt": None, "keepAliveProcesses": []}, now
    assert (await tools("processStop", identifier="web"))["status"] == "stopped"
    await tools.refused("process_over", "processStop", identifier="web")
    await tools("processExecute", command="sleep 60", name="victim")
    assert (await tools("processKill", identifier="victim"))["status"] == "killed"
    listed = (await tools("processesList"))["processes"]
    assert [one["name"] for one in listed][:3] == ["victim", "web", "slow"], listed


async def over_both_pipes(program, data):
    """What a desktop client does: it starts us, and talks to us through pipes."""
    async with over_stdio(program, data) as tools:
        made = await tools("checkout", template="default")
        sandbox = made["sandbox"]["id"]
        slow = [tools("exec", sandbox_id=sandbox, command=f"sleep 0.{n}; echo {n}") for n in (3, 2, 1)]
        assert [ran["stdout"] for ran in await asyncio.gather(*slow)] == ["3\n", "2\n", "1\n"]
        await tools.refused("bad_request", "exec", sandbox_id=sandbox, nosuch=1)
    async with over_stdio(program, data, "--sandbox", sandbox) as tools:
        assert set(tools.tools) == NAMES, tools.tools.keys()
        ran = await tools("processExecute", command="echo hi", waitForCompletion=True)
        assert ran["logs"] == "hi\n", ran
    async with over_stdio(program, data) as tools:
        await tools("return_sandbox", sandbox_id=sandbox)


async def who_is_let_in(url, key):
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    # A connection for each: the server may end one whose request it refused before its body arrived.
    alone = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=alone) as http:
        key = {"Authorization": f"Bearer {key}"}
        for headers, status in [
            ({}, 401),
            ({**key, "Origin": "http://evil.example"}, 403),
            ({**key, "Host": "evil.example"}, 421),
            (key, 200),
        ]:
            answer = await http.post(url, json=message, headers=headers)
            assert answer.status_code == status, (headers, answer.status_code, answer.text)
        assert (await http.get(url, headers=key)).status_code == 405


async def main(url, key, program, data):
    await who_is_let_in(f"{url}/mcp", key)
    async with over_http(f"{url}/mcp", key) as tools:
        await the_server(tools)
        await conversations(tools)
        tools.all_called()
        made = await tools("checkout", template="default")
    async with over_http(f"{url}/v1/sandboxes/{made['sandbox']['id']}/mcp", key) as tools:
        assert set(tools.tools) == NAMES, tools.tools.keys()
        await files_of_a_sandbox(tools)
        await processes_of_a_sandbox(tools)
        tools.all_called()
    await over_both_pipes(program, data)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
