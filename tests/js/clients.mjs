// The official clients against a running server: node clients.mjs BASE_ADDRESS [scripted SCRIPT_FILE SCRIPT_TEXT...]
// Needs Node 20 and `npm ci --prefix tests/js`; otherwise exits with 77 and says so. test_clients.c starts it.
import assert from 'node:assert/strict';
import {copyFileSync} from 'node:fs';

const missing = (text) => {
    console.error(text);
    process.exit(77);
};
if (Number(process.versions.node.split('.')[0]) < 20)
    missing(`this test needs Node 20 or newer; here is ${process.versions.node}`);
const load = async (name) => {
    try {
        return await import(name);
    } catch {
        return missing('this test needs the packages of tests/js/package-lock.json: npm ci --prefix tests/js');
    }
};
const {default: OpenAI} = await load('openai');
const {default: Anthropic} = await load('@anthropic-ai/sdk');
const {createOpenAICompatible} = await load('@ai-sdk/openai-compatible');
const {generateText, streamText, tool, jsonSchema, stepCountIs} = await load('ai');

const [base, script, calls] = process.argv.slice(2);
const openai = new OpenAI({baseURL: base + '/v1', apiKey: 'none', maxRetries: 0});
const anthropic = new Anthropic({baseURL: base, apiKey: 'none', maxRetries: 0});
const provider = createOpenAICompatible({name: 'weft', baseURL: base + '/v1', includeUsage: true});
const model = 'tiny';
const messages = [{role: 'user', content: 'In the beginning God created the heaven and the earth'}];
const greedy = {model, messages, temperature: 0};

const metric = async (name) => {
    const text = await (await fetch(base + '/metrics')).text();
    const line = text.split('\n').find((l) => l.startsWith(name + ' '));
    assert(line, `${name} is not there`);
    return Number(line.slice(name.length + 1));
};
const until = async (name, value) => {
    const end = Date.now() + 100000;
    let now;
    while ((now = await metric(name)) !== value) {
        assert(Date.now() < end, `${name} is ${now} and does not become ${value}`);
        await new Promise((done) => setTimeout(done, 5));
    }
};
const idle = async () => {
    await until('weft_num_requests_running', 0);
    await until('weft_num_requests_waiting', 0);
};
const run = async (name, body) => {
    try {
        await body();
        console.log(`ok    ${name}`);
    } catch (e) {
        console.log(`FAIL  ${name}: ${e.stack ?? e}`);
        process.exitCode = 1;
    }
};

const talk = async () => {
    let text;
    await run('openai: models', async () => {
        const list = await openai.models.list();
        assert.equal(list.data[0].id, model);
        assert.equal((await openai.models.retrieve(model)).id, model);
        await assert.rejects(openai.models.retrieve('another'), e => e.status === 404 && e.code === 'model_not_found');
    });
    await run('openai: chat, whole and streamed', async () => {
        const whole = await openai.chat.completions.create({...greedy, max_tokens: 20});
        text = whole.choices[0].message.content;
        assert.equal(whole.choices[0].finish_reason, 'length');
        assert.equal(whole.usage.completion_tokens, 20);
        assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + 20);
        const stream = await openai.chat.completions.create(
            {...greedy, max_tokens: 20, stream: true, stream_options: {include_usage: true}});
        let got = '', usage, finish;
        for await (const chunk of stream) {
            got += chunk.choices[0]?.delta.content ?? '';
            finish = chunk.choices[0]?.finish_reason ?? finish;
            usage = chunk.usage ?? usage;
        }
        assert.equal(got, text);
        assert.equal(finish, 'length');
        assert.equal(usage.completion_tokens, 20);
        assert.equal(typeof usage.prompt_tokens_details.cached_tokens, 'number');
    });
    await run('openai: the stream helper', async () => {
        const events = [];
        const stream = openai.chat.completions.stream({...greedy, max_tokens: 20}).on('content', (d) => events.push(d));
        const done = await stream.finalChatCompletion();
        assert.equal(done.choices[0].message.content, text);
        assert.equal(events.join(''), text);
    });
    await run('openai: log-probabilities', async () => {
        const r = await openai.chat.completions.create({...greedy, max_tokens: 6, logprobs: true, top_logprobs: 3});
        const list = r.choices[0].logprobs.content;
        assert.equal(list.length, 6);
        assert.equal(list.map((t) => t.token).join(''), r.choices[0].message.content);
        for (const t of list) {
            assert.equal(t.top_logprobs.length, 3);
            assert.equal(t.top_logprobs[0].logprob, t.logprob);
        }
    });
    await run('openai: completions', async () => {
        const args = {model, prompt: 'And the LORD said unto', max_tokens: 12, temperature: 0};
        const whole = await openai.completions.create(args);
        let got = '';
        for await (const chunk of await openai.completions.create({...args, stream: true})) got += chunk.choices[0]?.text ?? '';
        assert.equal(got, whole.choices[0].text);
        assert(got.length > 0);
    });
    await run('openai: responses', async () => {
        const args = {model, input: messages[0].content, max_output_tokens: 20, temperature: 0};
        const whole = await openai.responses.create(args);
        assert.equal(whole.output_text, text);
        assert.equal(whole.status, 'incomplete');
        assert.equal(whole.incomplete_details.reason, 'max_output_tokens');
        assert.equal(whole.usage.output_tokens, 20);
        const done = await openai.responses.stream(args).finalResponse();
        assert.equal(done.output_text, text);
        assert.equal(done.usage.output_tokens, 20);
        let types = [], last = -1;
        for await (const e of await openai.responses.create({...args, stream: true})) {
            types.push(e.type);
            assert(e.sequence_number > last, 'sequence numbers do not grow');
            last = e.sequence_number;
        }
        assert.equal(types[0], 'response.created');
        assert.equal(types.at(-1), 'response.incomplete');
    });
    await run('anthropic: messages', async () => {
        const args = {model, messages, max_tokens: 20, temperature: 0};
        const whole = await anthropic.messages.create(args);
        assert.deepEqual(whole.content, [{type: 'text', text}]);
        assert.equal(whole.stop_reason, 'max_tokens');
        assert.equal(whole.usage.output_tokens, 20);
        const parts = [];
        const done = await anthropic.messages.stream(args).on('text', (d) => parts.push(d)).finalMessage();
        assert.equal(parts.join(''), text);
        assert.deepEqual(done.content, whole.content);
        assert.equal(done.usage.output_tokens, 20);
        const count = await anthropic.messages.countTokens({model, messages});
        assert.equal(count.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
        const stopped = await anthropic.messages.create({...args, stop_sequences: [text.slice(4, 8)]});
        assert.equal(stopped.stop_reason, 'stop_sequence');
        assert.equal(stopped.stop_sequence, text.slice(4, 8));
        assert.equal(stopped.content[0].text, text.slice(0, text.indexOf(text.slice(4, 8))));
    });
    await run('ai: generateText and streamText', async () => {
        const args = {model: provider(model), messages, maxOutputTokens: 20, temperature: 0, maxRetries: 0};
        const whole = await generateText(args);
        assert.equal(whole.text, text);
        assert.equal(whole.finishReason, 'length');
        assert.equal(whole.usage.outputTokens, 20);
        const stream = streamText(args);
        let got = '';
        for await (const d of stream.textStream) got += d;
        assert.equal(got, text);
        assert.equal((await stream.usage).outputTokens, 20);
        assert.equal(await stream.finishReason, 'length');
    });
};

const errors = async () => {
    await run('openai: errors are typed', async () => {
        await assert.rejects(openai.chat.completions.create({...greedy, temperature: 7}), (e) => {
            assert(e instanceof OpenAI.BadRequestError);
            assert.equal(e.status, 400);
            assert.equal(e.param, 'temperature');
            assert.equal(e.type, 'invalid_request_error');
            return true;
        });
        await assert.rejects(openai.chat.completions.create({...greedy, n: 2, stream: true}), (e) => {
            assert(e instanceof OpenAI.BadRequestError);
            assert.equal(e.param, 'n');
            return true;
        });
        const long = 'the LORD '.repeat(2000);
        await assert.rejects(openai.chat.completions.create({model, messages: [{role: 'user', content: long}]}), (e) => {
            assert(e instanceof OpenAI.BadRequestError);
            assert.equal(e.code, 'context_length_exceeded');
            return true;
        });
        await assert.rejects(openai.get('/nothing'), OpenAI.NotFoundError);
        await assert.rejects(openai.responses.create({model, input: 'x', temperature: 7}), OpenAI.BadRequestError);
    });
    await run('anthropic: errors are typed', async () => {
        await assert.rejects(anthropic.messages.create({model, messages, max_tokens: 3, temperature: 7}), (e) => {
            assert(e instanceof Anthropic.BadRequestError);
            assert.equal(e.status, 400);
            assert.equal(e.error.error.type, 'invalid_request_error');
            assert.match(e.error.error.message, /temperature/);
            return true;
        });
        await assert.rejects(anthropic.messages.create({model, messages: [], max_tokens: 3}), Anthropic.BadRequestError);
    });
    await run('ai: errors carry the status', async () => {
        await assert.rejects(generateText({model: provider(model), messages, temperature: 7, maxRetries: 0}), (e) => {
            assert.equal(e.statusCode, 400);
            assert.match(e.message, /temperature/);
            return true;
        });
    });
};

const endless = {...greedy, ignore_eos: true};
const aborts = async () => {
    const cancelled = () => metric('weft_request_success_total{finished_reason="cancelled"}');
    await run('openai: an aborted stream frees its place', async () => {
        const before = await cancelled();
        const stream = await openai.chat.completions.create({...endless, stream: true});
        for await (const chunk of stream) {
            assert(chunk.choices);
            break; // leaving the loop aborts the request
        }
        await idle();
        assert.equal(await cancelled(), before + 1);
    });
    await run('openai: an aborted whole request frees its place', async () => {
        const before = await cancelled();
        const abort = new AbortController();
        const request = openai.chat.completions.create(endless, {signal: abort.signal});
        const rejected = assert.rejects(request, OpenAI.APIUserAbortError);
        await until('weft_num_requests_running', 1);
        abort.abort();
        await rejected;
        await idle();
        assert.equal(await cancelled(), before + 1);
    });
    await run('anthropic: an aborted stream frees its place', async () => {
        const before = await cancelled();
        const stream = anthropic.messages.stream({model, messages, max_tokens: 900, temperature: 0});
        await new Promise((done) => stream.once('text', done));
        stream.abort();
        await assert.rejects(stream.done(), Anthropic.APIUserAbortError);
        await idle();
        assert.equal(await cancelled(), before + 1);
    });
    await run('ai: an aborted stream frees its place', async () => {
        const before = await cancelled();
        const abort = new AbortController();
        const stream = streamText({model: provider(model), messages, temperature: 0, abortSignal: abort.signal, onError: () => {}});
        for await (const d of stream.textStream) {
            assert(d !== undefined);
            abort.abort();
        }
        await idle();
        assert.equal(await cancelled(), before + 1);
    });
};

// The server plays SCRIPT_FILE; `calls` is a script in which the model thinks, speaks and calls weather and run.
const wanted = [['weather', {city: 'Köln', days: 3}], ['run', {command: 'ls 2>&1'}]];
const parameters = {type: 'object', properties: {}};
const functions = wanted.map(([name]) => ({type: 'function', function: {name, description: name, parameters}}));
const check = (list) => assert.deepEqual(list, wanted);
const tools = async () => {
    const play = () => copyFileSync(calls, script);
    const args = {model, messages, temperature: 0, reasoning_effort: 'high'};
    await run('openai: calls of a whole chat', async () => {
        play();
        const {choices: [{message, finish_reason}]} = await openai.chat.completions.create({...args, tools: functions});
        assert.equal(finish_reason, 'tool_calls');
        assert.equal(message.reasoning_content, 'Hm.');
        assert.equal(message.content, 'I look.');
        assert.equal(new Set(message.tool_calls.map((c) => c.id)).size, 2);
        check(message.tool_calls.map((c) => [c.function.name, JSON.parse(c.function.arguments)]));
    });
    await run('openai: calls of a stream are put together', async () => {
        play();
        const done = await openai.chat.completions.stream({...args, tools: functions}).finalChatCompletion();
        const {message, finish_reason} = done.choices[0];
        assert.equal(finish_reason, 'tool_calls');
        assert.equal(message.content, 'I look.');
        check(message.tool_calls.map((c) => [c.function.name, JSON.parse(c.function.arguments)]));
    });
    await run('openai: calls of responses', async () => {
        const flat = functions.map((f) => ({type: 'function', ...f.function, strict: false}));
        const ask = {model, input: messages[0].content, tools: flat, reasoning: {effort: 'high'}, temperature: 0};
        for (const stream of [false, true]) {
            play();
            const r = stream ? await openai.responses.stream(ask).finalResponse() : await openai.responses.create(ask);
            assert.equal(r.status, 'completed');
            assert.equal(r.output_text, 'I look.');
            assert(r.output.some((o) => o.type === 'reasoning'));
            check(r.output.filter((o) => o.type === 'function_call').map((o) => [o.name, JSON.parse(o.arguments)]));
        }
    });
    await run('anthropic: calls of messages', async () => {
        const list = functions.map((f) => ({name: f.function.name, description: 'x', input_schema: parameters}));
        const ask = {model, messages, max_tokens: 800, tools: list, thinking: {type: 'enabled', budget_tokens: 1024}};
        for (const stream of [false, true]) {
            play();
            const r = stream ? await anthropic.messages.stream(ask).finalMessage() : await anthropic.messages.create(ask);
            assert.equal(r.stop_reason, 'tool_use');
            assert.deepEqual(r.content.map((b) => b.type), ['thinking', 'text', 'tool_use', 'tool_use']);
            assert.equal(r.content[0].thinking, 'Hm.');
            assert.equal(r.content[1].text, 'I look.');
            check(r.content.slice(2).map((b) => [b.name, b.input]));
        }
    });
    await run('all: calls that the length cuts off', async () => {
        const list = functions.map((f) => ({name: f.function.name, description: 'x', input_schema: parameters}));
        const flat = functions.map((f) => ({type: 'function', ...f.function, strict: false}));
        const known = ([name, input]) => wanted.some(([n, i]) => n === name && JSON.stringify(i) === JSON.stringify(input));
        let calls = 0;
        for (let limit = 8; limit < 90; limit += 5) {
            play();
            const chat = {...args, tools: functions, max_completion_tokens: limit};
            const {choices: [{message, finish_reason}]} = await openai.chat.completions.create(chat);
            assert.equal(finish_reason, 'length');
            assert(!/DSML|[<>]/.test(message.content ?? ''), message.content);
            for (const c of message.tool_calls ?? []) assert(c.function.arguments.startsWith('{'), c.function.arguments);
            calls += message.tool_calls?.length ?? 0;
            play();
            const r = await openai.responses.create({model, input: messages[0].content, tools: flat, temperature: 0,
                                                     max_output_tokens: limit, reasoning: {effort: 'high'}});
            assert.equal(r.status, 'incomplete');
            for (const o of r.output.filter((o) => o.type === 'function_call' && o.status === 'completed'))
                assert(known([o.name, JSON.parse(o.arguments)]), o.arguments);
            const ask = {model, messages, max_tokens: limit, tools: list, thinking: {type: 'enabled', budget_tokens: 1024}};
            play();
            const whole = await anthropic.messages.create(ask);
            assert.equal(whole.stop_reason, 'max_tokens');
            for (const b of whole.content.filter((b) => b.type === 'tool_use')) assert(known([b.name, b.input]), JSON.stringify(b));
            play();
            assert.equal((await anthropic.messages.stream(ask).finalMessage()).stop_reason, 'max_tokens');
            const seen = [];
            const set = Object.fromEntries(wanted.map(([name]) => [name, tool({
                description: name,
                inputSchema: jsonSchema(parameters),
                execute: async (input) => {
                    seen.push([name, input]);
                    return 'done';
                },
            })]));
            play();
            const s = streamText({model: provider(model), messages, tools: set, temperature: 0, maxRetries: 0, maxOutputTokens: limit,
                                  providerOptions: {weft: {reasoningEffort: 'high'}}});
            for await (const part of s.fullStream) assert.notEqual(part.type, 'error', JSON.stringify(part));
            assert.equal(await s.finishReason, 'length');
            for (const call of seen) assert(known(call), `called with ${JSON.stringify(call)}`);
        }
        assert(calls > 3, `only ${calls} calls`);
    });
    await run('ai: calls, and a loop that answers them', async () => {
        const seen = [];
        const set = Object.fromEntries(wanted.map(([name]) => [name, tool({
            description: name,
            inputSchema: jsonSchema(parameters),
            execute: async (input) => {
                seen.push([name, input]);
                return 'done';
            },
        })]));
        play();
        const r = streamText({model: provider(model), messages, tools: set, temperature: 0, maxRetries: 0, stopWhen: stepCountIs(2),
                              providerOptions: {weft: {reasoningEffort: 'high'}}});
        let text = '', reasoning = '';
        for await (const part of r.fullStream) {
            if (part.type === 'error') throw part.error;
            if (part.type === 'text-delta') text += part.text;
            if (part.type === 'reasoning-delta') reasoning += part.text;
        }
        const steps = await r.steps;
        assert.equal(steps.length, 2);
        assert.equal(steps[0].finishReason, 'tool-calls');
        check(seen.slice(0, 2));
        assert(text.startsWith('I look.'), text);
        assert(reasoning.startsWith('Hm.'), reasoning);
    });
};

if (script) await tools();
else {
    await talk();
    await errors();
    await aborts();
}
